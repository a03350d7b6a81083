"""On a real GPU, calls of other libraries are right, and read nothing back that they know."""

import pytest
import torch

from labkernels.compat import flash_attn, flashinfer, scaled_dot_product_attention
from tests.compat.judged import close, normal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),  # torch calls it a prototype
]

Q, K, V = normal(2, 12, 4, 64), normal(2, 40, 2, 64), normal(2, 40, 2, 64).flip(0)
LENS = torch.tensor([30, 9], dtype=torch.int32)


def test_dense_calls_read_nothing(no_reading):
    q, k, v = (x.cuda().requires_grad_() for x in (Q, K, V))

    def calls():
        out = flash_attn.flash_attn_func(q, k, v, causal=True)
        out.sum().backward()
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        full = scaled_dot_product_attention(*heads_first, enable_gqa=True).transpose(1, 2)
        with torch.no_grad():
            last = flash_attn.flash_attn_with_kvcache(q[:, -1:], k, v)
        return out, full, last

    calls()  # new lengths: the lists of their blocks are copied to the GPU once
    no_reading()
    out, full, last = calls()
    torch.cuda.set_sync_debug_mode("default")
    assert q.grad.isfinite().all()
    for b in range(2):
        close(out[b].cpu(), Q[b], K[b], V[b], causal=True)
        close(full[b].cpu(), Q[b], K[b], V[b])
        close(last[b].cpu(), Q[b, -1:], K[b], V[b])


def test_a_cache_that_grows():
    k, v = K.cuda(), V.cuda()
    new = normal(2, 1, 2, 64), normal(2, 1, 2, 64).flip(0)
    given = (Q[:, :1].cuda(), k, v, *(x.cuda() for x in new))
    out = flash_attn.flash_attn_with_kvcache(*given, cache_seqlens=LENS.cuda(), causal=True)
    rows = torch.tensor([1, 0], dtype=torch.int32).cuda()
    how = {"cache_seqlens": (LENS + 1).flip(0).cuda(), "cache_batch_idx": rows}
    turned = flash_attn.flash_attn_with_kvcache(Q[:, :1].flip(0).cuda(), k, v, **how)
    for b, n in enumerate(LENS.tolist()):
        keys, values = (torch.cat([old[b, :n], x[b]]) for old, x in zip((K, V), new, strict=True))
        assert torch.equal(k[b, : n + 1].cpu(), keys)
        close(out[b].cpu(), Q[b, :1], keys, values)
        close(turned[1 - b].cpu(), Q[b, :1], keys, values)


@pytest.mark.parametrize("use_tensor_cores", [False, True])
def test_a_wrapper_reads_its_plan_once(use_tensor_cores, no_reading):
    pool, q = normal(4, 2, 16, 2, 64), normal(2, 4, 64)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(1, device="cuda"), use_tensor_cores=use_tensor_cores
    )
    indptr, indices = torch.tensor([0, 2, 3]).int(), torch.tensor([3, 0, 2]).int()
    wrapper.plan(indptr, indices, torch.tensor([14, 9]).int(), 4, 2, 64, 16)
    given = q.cuda(), pool.cuda()
    wrapper.run(*given)
    no_reading()
    out = wrapper.run(*given)
    torch.cuda.set_sync_debug_mode("default")
    for b, (pages, n) in enumerate((([3, 0], 30), ([2], 9))):
        k, v = (pool[pages, i].flatten(0, 1)[:n] for i in (0, 1))
        close(out[b][None].cpu(), q[b][None], k, v)


def test_a_custom_mask_is_read_as_flashinfer_reads_it():
    """Both round P and the output to fp16; a wrong bit moves a row by its whole spread."""
    library = pytest.importorskip("flashinfer")
    q, pool = normal(12, 4, 128).cuda(), normal(5, 2, 16, 2, 128).cuda()
    tokens, pages = torch.tensor([0, 5, 12]).int().cuda(), torch.tensor([0, 3, 5]).int().cuda()
    indices, last = torch.tensor([3, 0, 2, 1, 4]).int().cuda(), torch.tensor([1, 9]).int().cuda()
    sizes = 5 * 33 + 7 * 25  # no request fills its last byte
    flat = (torch.arange(sizes) * 7919 % 13 % 3 > 0).cuda()
    found = []
    for of in (flashinfer, library):
        workspace = torch.empty(2**27, dtype=torch.uint8, device="cuda")
        wrapper = of.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
        wrapper.plan(tokens, pages, indices, last, 4, 2, 128, 16, custom_mask=flat, causal=True)
        found.append(wrapper.run(q, pool, return_lse=True))
    for mine, theirs in zip(*found, strict=True):
        assert (mine.float() - theirs.float()).abs().max() < 0.01
