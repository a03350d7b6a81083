"""Each row of the page's tables for FlashInfer and flash-attn is run, by what stands right."""

import math
import re

import pytest
import torch

import labkernels
from labkernels import LatentKV, PagedKV, RaggedKV
from labkernels.testing import assert_attention_close
from tests.book.texts.test_coming_from import PAGE, close, exact
from tests.kernels.append.test_rotary import rotated

ENDS = torch.tensor([0, 3, 8], dtype=torch.int32)
LENS = ENDS.diff()
TABLE = torch.arange(2, dtype=torch.int32)[:, None]


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).half()


Q, K, V = (normal(8, heads, 64) for heads in (4, 2, 2))
POOLS = normal(2, 16, 2, 64), normal(2, 16, 2, 64).flip(0)
CACHE = PagedKV(*POOLS, TABLE, LENS)


def is_exact(step, q=Q, k=K, v=V, causal=False):
    """Assert that each of two requests has the output of float64."""
    for a, b in ((0, 3), (3, 8)):
        close(step.out[a:b], exact(q[a:b], k[a:b], v[a:b], causal)[0])


def of_cache(step, q, lens=LENS, pools=POOLS, per=1):
    for b, n in enumerate(lens.tolist()):
        rows = slice(b * per, (b + 1) * per)
        close(step.out[rows], exact(q[rows], pools[0][b, :n], pools[1][b, :n], False)[0])


def paged_and_ragged_prefill():
    is_exact(labkernels.prefill(Q, RaggedKV(K, V, ENDS), ENDS))
    two = torch.tensor([0, 4, 8], dtype=torch.int32)
    of_cache(labkernels.prefill(Q, CACHE, two), Q, per=4)


def latent():
    ckv, kpe = normal(2, 16, 512), normal(2, 16, 64)
    q_nope, q_pe = normal(2, 4, 512), normal(2, 4, 64)
    step = labkernels.mla_decode(q_nope, q_pe, LatentKV(ckv, kpe, TABLE, LENS))
    for b, n in enumerate(LENS.tolist()):
        k = torch.cat([ckv[b, :n], kpe[b, :n]], -1).double()
        q = torch.cat([q_nope[b], q_pe[b]], -1).double()
        wanted = (q @ k.T * LatentKV.default_scale).softmax(-1) @ ckv[b, :n].double()
        close(step.out[b], wanted)


def append():
    cache = PagedKV(*(x.clone() for x in POOLS), TABLE, LENS.clone())
    new = torch.tensor([0, 1, 2], dtype=torch.int32)
    labkernels.ops.append(cache, K[:2], V[:2], new)
    assert cache.kv_len.tolist() == [4, 6]
    assert torch.equal(cache.k[1, 5], K[1])


def decode_step_twice():
    q = normal(2, 4, 64)
    step = labkernels.decode_step(q, CACHE)
    step.run()
    of_cache(step, q)


def append_rotated():
    cache = PagedKV(*(x.clone() for x in POOLS), TABLE, LENS.clone())
    new, tables = torch.tensor([0, 1, 2], dtype=torch.int32), normal(6, 64).chunk(2, 1)
    labkernels.ops.append(cache, K[:2], V[:2], new, rotary=tables)
    assert torch.equal(cache.k[1, 5], rotated(K[1:2], *tables, [5], interleaved=False)[0].half())


def by_either_kernel():
    q = normal(2, 4, 64)
    for kernel in ("decode_fma", "decode_mma"):
        step = labkernels.decode(q, CACHE, kernel=kernel)
        assert step.plan.kernel == kernel
        of_cache(step, q)


def by_splits():
    q = normal(2, 4, 64)
    step = labkernels.decode(q, CACHE, keys_per_split=64)
    assert step.plan.keys_per_split == 64
    of_cache(step, q)


def scale_and_lse2():
    step = labkernels.prefill(Q, RaggedKV(K, V, ENDS), cu_seqlens_q=ENDS, scale=0.125)
    is_exact(step)
    lse = exact(Q[3:], K[3:], V[3:], False)[1]
    # fp32 sums of five weights
    assert torch.allclose(step.lse2[3:].T.double() * math.log(2), lse, atol=1e-5, rtol=0)


def attention():
    out, lse2 = labkernels.attention(Q, K, V, ENDS, ENDS, q_lens=[3, 5], kv_lens=[3, 5])
    close(out[3:], exact(Q[3:], K[3:], V[3:], False)[0])
    lse = exact(Q[3:], K[3:], V[3:], False)[1]
    # fp32 sums of five weights
    assert torch.allclose(lse2[3:].T.double() * math.log(2), lse, atol=1e-5, rtol=0)


def packed():
    qkv = normal(8, 3, 2, 64)
    is_exact(labkernels.varlen_qkvpacked(qkv, ENDS), *qkv.unbind(1))


def with_new_keys():
    cache = PagedKV(*(x.clone() for x in POOLS), TABLE, LENS.clone())
    ends = torch.tensor([0, 1, 2], dtype=torch.int32)
    step = labkernels.with_kvcache(Q[:2], cache, K[:2], V[:2], ends)
    of_cache(step, Q[:2], LENS + 1, (cache.k, cache.v))


def with_splits():
    ends = torch.tensor([0, 1, 2], dtype=torch.int32)
    of_cache(labkernels.prefill(Q[:2], CACHE, ends, splits=2), Q[:2])
    by_splits()


def variants():
    ragged, slopes = RaggedKV(K, V, ENDS), torch.tensor([0.5, 0.25, 0.125, 0.0625])
    for how in (
        {"window_left": 2, "soft_cap": 0.7, "sinks": slopes},
        {"window_left": 2, "window_right": 0, "alibi": slopes},
    ):
        step = labkernels.prefill(Q, ragged, ENDS, **how)
        ends = {"cu_seqlens": ENDS, "cu_seqlens_q": ENDS}
        assert_attention_close(step.out, Q, K, V, lse2=step.lse2, named=False, **ends, **how)


def merges():
    outs, lse2s = torch.stack([Q, 3 * Q]), torch.zeros(2, *Q.shape[:2])
    merged = labkernels.merge_states(outs, lse2s)
    assert torch.equal(merged.out, 2 * Q)
    assert torch.equal(merged.lse2, torch.ones(Q.shape[:2]))


def cascade():
    q, prefix = normal(2, 4, 64), PagedKV(*POOLS, TABLE[:1], LENS[:1])
    step = labkernels.cascade_decode(q, prefix, CACHE)
    both = [torch.cat([pool_rows(pool, 0), pool_rows(pool, 1)]) for pool in POOLS]
    close(step.out[1:], exact(q[1:], *both, False)[0])


def pool_rows(pool, request):
    """Return the rows of a request's keys, or of its values."""
    return pool[TABLE[request].long()].flatten(0, 1)[: LENS[request]]


# By the first words of a row's left cell.
RUNS = {
    "BatchDecodeWithPagedKVCacheWrapper": decode_step_twice,
    "BatchPrefillWithPagedKVCacheWrapper": paged_and_ragged_prefill,
    "mla.BatchMLAPagedAttentionWrapper": latent,
    "append_paged_kv_cache": append,
    "apply_rope_with_cos_sin_cache": append_rotated,
    "merge_state": merges,
    "MultiLevelCascadeAttentionWrapper": cascade,
    "plan": decode_step_twice,
    "use_tensor_cores=False": by_either_kernel,
    "fixed_split_size": by_splits,
    "sm_scale": scale_and_lse2,
    "window_left": variants,
    "flash_attn_func": attention,
    "flash_attn_varlen_qkvpacked_func": packed,
    "flash_attn_with_kvcache` with": with_new_keys,
    "flash_attn_with_kvcache` without": paged_and_ragged_prefill,
    "softmax_scale": scale_and_lse2,
    "num_splits": with_splits,
    "window_size": variants,
    "rotary_cos": append_rotated,
    "max_seqlen_q": attention,
    "softmax_lse": attention,
}
ROWS = [
    (left, right)
    for title in ("FlashInfer", "flash-attn")
    for left, right in re.findall(
        r"^\| (`.*?) \| (.*) \|$", PAGE.partition(f"## {title}\n")[2].partition("```")[0], re.M
    )
]


def run_of(left):
    (found,) = [x for x in RUNS if left.startswith((f"`{x}`", f"`{x} "))] or [None]
    return found


def test_every_row_has_a_run_and_every_run_a_row():
    assert [run_of(left) for left, _ in ROWS] == list(RUNS)


@pytest.mark.parametrize(("left", "right"), ROWS)
def test_each_row_runs_with_what_stands_right(left, right):
    for name in re.findall(r"{func}`labkernels\.(.*?)`", right):
        found = labkernels
        for part in name.split("."):
            found = getattr(found, part)
        assert callable(found)
    RUNS[run_of(left)]()
