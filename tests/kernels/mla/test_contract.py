"""Every CUDA MLA kernel keeps its contract on the CPU build."""

import pytest
import torch

import labkernels
from labkernels import ops
from labkernels.kernels.caches.latent import LatentKV
from tests.kernels.contract import CUDA_MLAS, run_checked
from tests.kernels.decode.cases import LAYOUTS, bits
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import sums

# no query, no key, more queries than keys, a new token, around a step
Q_LENS = (0, 1, 2, 4, 3, 4, 1)
KV_LENS = (5, 0, 1, 3, 64, 150, 17)
HEADS = (1, 3, 16, 33, 128)
CUTS = ({}, {"splits": 2}, {"keys_per_split": 37})  # the plan's choice; a number; no whole steps
every_kernel = pytest.mark.parametrize("kernel", CUDA_MLAS)


def every_tile():
    """Yield every tile option once, with alternating formats."""
    for name, spec in CUDA_MLAS.items():
        for i, tile in enumerate(spec.tiles(spec.shape(head_dim=576), spec.policies[0])):
            yield pytest.param(name, tile.label, ("bf16", "fp16")[i % 2])


@pytest.mark.few_of_each("kernel", 3)
@every_kernel
@pytest.mark.parametrize("heads", HEADS)
def test_every_number_of_heads(kernel, heads):
    turn = HEADS.index(heads)
    lengths = (Q_LENS, KV_LENS) if heads < 100 else ((1, 2), (70, 1))
    case = mla_case(
        *lengths, heads=heads, causal=heads != 3, layout=LAYOUTS[turn % 4], dtype="fp16"
    )
    run_checked(case, kernel, **CUTS[turn % 3])


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize(("kernel", "tile", "dtype"), list(every_tile()))
def test_every_tile(kernel, tile, dtype):
    case = mla_case((4, 1, 2), (150, 0, 40), heads=17, dtype=dtype)
    result = run_checked(case, kernel, tile=tile)
    assert result.plan.tile == tile
    run_checked(case, kernel, tile=tile, keys_per_split=70, checks=True)


@pytest.mark.few_of_each("kernel", 2)
@every_kernel
@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_every_page_size_and_layout(kernel, page_size):
    layout = LAYOUTS[page_size % len(LAYOUTS)]
    case = mla_case(Q_LENS, KV_LENS, page_size=page_size, layout=layout)
    for cut in CUTS:
        run_checked(case, kernel, **cut)


@every_kernel
@pytest.mark.parametrize("causal", [True, False])
def test_queries_of_many_tokens(kernel, causal):
    """FlashInfer's own test of MLA has requests of 17, 37 and 77 tokens."""
    case = mla_case((17, 37, 77), (64, 37, 150), heads=16, causal=causal)
    run_checked(case, kernel)


@every_kernel
def test_splits_that_hold_no_keys_of_a_request(kernel):
    case = mla_case((2, 0, 4, 1), (300, 10, 0, 90), heads=9)
    result = run_checked(case, kernel, keys_per_split=32)
    assert result.plan.splits == 10


@every_kernel
def test_one_token_a_request_needs_no_lengths(kernel):
    case = mla_case((1, 1, 1), (70, 0, 17), heads=16)
    inputs = (case.q_nope, case.q_pe, case.kv)
    for causal in (False, True):
        result = ops.mla_decode(*inputs, kernel=kernel, causal=causal)
        assert torch.equal(bits(result.out), bits(case.run(kernel).out))


@every_kernel
def test_the_rest_of_the_batch_changes_nothing(kernel):
    case = mla_case(Q_LENS, KV_LENS, heads=33)
    spec = CUDA_MLAS[kernel]
    tile = spec.tiles(spec.shape(head_dim=576), spec.policies[0])[0].label
    options = {"kernel": kernel, "tile": tile, "keys_per_split": 96}
    together = case.run(**options)
    assert together.plan.batch_invariant
    ends = sums(Q_LENS).tolist()
    for i, n in enumerate(Q_LENS):
        tokens, kv = slice(ends[i], ends[i + 1]), case.kv
        own = LatentKV(kv.ckv, kv.kpe, kv.page_table[i : i + 1], kv.kv_len[i : i + 1])
        q = {"q_nope": case.q_nope[tokens], "q_pe": case.q_pe[tokens]}
        alone = case.changed(**q, kv=own, cu_seqlens_q=sums((n,))).run(**options)
        assert torch.equal(bits(alone.out), bits(together.out[tokens]))
        assert torch.equal(bits(alone.lse2), bits(together.lse2[tokens]))


@every_kernel
def test_policies(kernel):
    """Two policies other than the default run here; a GPU runs them all."""
    case = mla_case((2, 1), (150, 40), heads=17)
    for policy in (CUDA_MLAS[kernel].policies[-1], CUDA_MLAS[kernel].policies[-3]):
        run_checked(case, kernel, policy=policy, keys_per_split=64)


@every_kernel
def test_no_query_and_no_key_at_all(kernel):
    run_checked(mla_case((0, 0), (5, 0)), kernel)
    run_checked(mla_case((3, 4), (0, 0)), kernel, keys_per_split=16)


@every_kernel
def test_large_and_tiny_scores(kernel):
    """Scores of hundreds leave one key with all the weight; scores of nearly 0 leave it to all."""
    case = mla_case(Q_LENS, KV_LENS, seed=3)
    for factor in (30.0, 2.0**-12):
        scaled = case.changed(q_nope=case.q_nope * factor, q_pe=case.q_pe * factor)
        run_checked(scaled, kernel, keys_per_split=100, sharp=False)


@every_kernel
def test_the_verdict_is_rounding(kernel):
    case = mla_case((1, 2), (150, 300), heads=16)
    result = case.run(kernel)
    found = labkernels.verdict(
        result.out,
        (case.q_nope, case.q_pe),
        cache=case.kv,
        cu_seqlens_q=case.cu_seqlens_q,
        causal=True,
        lse2=result.lse2,
        p_format=CUDA_MLAS[kernel].policies[0].p_format("bf16"),
    )
    assert found.answer == "ROUNDING", found.summary()
