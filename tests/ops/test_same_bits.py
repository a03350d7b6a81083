"""With batch_invariant=True a request keeps its bits in every batch, order, chunk and page.

The sizes are small, and within them the tests leave nothing out: batches of 1 to 64 requests, and
chunks of 1 to all tokens. Each case has requests without keys, with one key and with ragged tails,
and everything that no request owns is NaN.
"""

from dataclasses import replace

import pytest
import torch

from labkernels import ops
from tests.kernels.backward.cases import CUDA_BACKWARDS, GRADIENTS, backward_case
from tests.kernels.contract import CUDA, CUDA_MLAS, PAGED_PREFILLS
from tests.kernels.decode.cases import (
    LAYOUTS,
    assert_same,
    bits,
    decode_case,
    ends_of,
    span,
    sums,
)
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case

LENGTHS = (0, 1, 2, 15, 16, 17, 31, 65, 100)
SPLIT = {"batch_invariant": True, "keys_per_split": 32}  # several splits at these lengths
TOKENS, PAST = 33, 37  # of the request that is computed in chunks
Q_LENS = (TOKENS, 0, 1, 2, 20, 3)
KV_LENS = (PAST + TOKENS, 5, 1, 0, 20, 1)


def batches(n):
    """Yield every request alone, and one batch of each size up to 64, each in another order."""
    yield from ([i] for i in range(n))
    for size in range(2, 65):
        yield [(5 * size + 2 * i) % n for i in range(size)]


@pytest.mark.parametrize("kernel", CUDA)
def test_a_decode_in_batches_of_1_to_64(kernel):
    case = decode_case(LENGTHS, group=2)
    expected = case.run(kernel, **SPLIT)
    assert expected.plan.splits > 1
    for requests in batches(len(LENGTHS)):
        assert_same(case.chosen(requests).run(kernel, **SPLIT), expected, case.rows(requests))


def unlike(case_of, kernel, how, **shape):
    """Assert that pages of other sizes, layouts and places keep the bits, and wide page tables."""
    expected = case_of(**shape, page_size=16).run(kernel, **how)
    for size, layout in zip((1, 3, 64, 256), LAYOUTS, strict=True):
        paged = case_of(**shape, page_size=size, layout=layout)
        assert_same(paged.run(kernel, **how), expected)
        table = torch.nn.functional.pad(paged.kv.page_table, (0, 40))
        assert_same(paged.with_kv(page_table=table).run(kernel, **how), expected)
    return expected


@pytest.mark.parametrize("kernel", CUDA)
def test_a_decode_in_other_pages(kernel):
    unlike(lambda **how: decode_case(LENGTHS, **how), kernel, SPLIT)


@pytest.mark.few_of_each("kernel", 1)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("kernel", PAGED_PREFILLS)
def test_a_prefill_in_other_pages(kernel, head_dim):
    """Also where the pages are smaller than a box of the TMA, and where there are none."""

    def case_of(**how):
        return prefill_case(Q_LENS, KV_LENS, head_dim=head_dim, **how)

    how = {"batch_invariant": True}
    paged = unlike(case_of, kernel, how)
    assert_same(case_of(page_size=None).run(kernel, **how), paged)


def chunk(case, first, end, *, alone):
    """Return the case of some tokens of its first request, beside all its other requests."""
    others = case.rows(range(1, len(Q_LENS)))
    lengths = torch.tensor(KV_LENS, dtype=torch.int32)
    lengths[0] = PAST + end
    counts = (end - first, *Q_LENS[1:])
    if alone:
        others, counts, lengths = others[:0], counts[:1], lengths[:1]
    rows = torch.cat((case.rows([0])[first:end], others))
    fields = {name: getattr(case, name)[rows] for name in case.queries}
    kv = replace(case.kv, page_table=case.kv.page_table[: len(lengths)], kv_len=lengths)
    return case.changed(**fields, kv=kv, cu_seqlens_q=sums(counts))


def check_chunks(case, kernel, how):
    expected = case.run(kernel, **how)
    for size in range(1, TOKENS + 1):
        for i, first in enumerate(range(0, TOKENS, size)):
            end = min(first + size, TOKENS)
            part = chunk(case, first, end, alone=(size + i) % 2 == 0).run(kernel, **how)
            assert part.plan.batch_invariant
            for found, whole in zip(part.outputs(), expected.outputs(), strict=True):
                assert torch.equal(bits(found[: end - first]), bits(whole[first:end])), (size, i)


VARIANTS = {
    "split": SPLIT,
    "whole": {"batch_invariant": True},
    "window": {"batch_invariant": True, "window_left": 20, "sinks": torch.randn(4)},
    "sinks": {**SPLIT, "sinks": torch.randn(4), "alibi": torch.rand(4), "soft_cap": 5.0},
}


@pytest.mark.few_of_each("kernel", 1)
@pytest.mark.parametrize("how", VARIANTS)
@pytest.mark.parametrize("kernel", PAGED_PREFILLS)
def test_a_prefill_in_chunks_of_1_to_all_tokens(kernel, how):
    check_chunks(prefill_case(Q_LENS, KV_LENS, page_size=16), kernel, VARIANTS[how])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kernel", CUDA_MLAS)
def test_an_mla_decode_in_chunks_of_1_to_all_tokens_and_in_other_pages(kernel):
    check_chunks(mla_case(Q_LENS, KV_LENS, heads=3), kernel, SPLIT)
    unlike(lambda **how: mla_case((3, 0, 1), (70, 5, 1), **how), kernel, SPLIT)


@pytest.mark.parametrize("size", [1, 7, TOKENS])
def test_a_cache_that_grows_by_chunks_ends_in_the_bits_of_one_prefill(size):
    case = prefill_case((PAST + TOKENS,), (PAST + TOKENS,), page_size=16)
    expected, (k, v) = case.run(**SPLIT), case.kv.of_request(0)
    pools = {name: torch.full_like(getattr(case.kv, name), torch.nan) for name in "kv"}
    cache = replace(case.kv, kv_len=torch.zeros(1, dtype=torch.int32), **pools)
    for first in range(0, len(case.q), size):
        new = slice(first, min(first + size, len(case.q)))
        ends = sums((new.stop - first,))
        step = ops.with_kvcache(
            case.q[new], cache, k[new].contiguous(), v[new].contiguous(), ends, **SPLIT
        )
        assert_same(step, expected, new)


@pytest.mark.few_of_each("kernel", 1)
@pytest.mark.parametrize("group", [3, 1])
@pytest.mark.parametrize("kernel", CUDA_BACKWARDS)
def test_gradients_alone_and_in_every_turn_of_the_batch(kernel, group):
    check_gradients(kernel, Q_LENS, KV_LENS, group=group)


def check_gradients(kernel, q_lens, kv_lens, **shape):
    case, n = backward_case(q_lens, kv_lens, layout="thd", **shape), len(q_lens)
    how = {"deterministic": True, "kernel": kernel, "causal": True}
    whole = ops.backward(*case.arguments, **how)
    turns = ([(i + j) % n for j in range(n)] for i in range(n))
    for order in (*([i] for i in range(n)), *turns, [4, 0, 4, 0], [0] * 64):
        ends = case.arguments[-2:]
        of_q, of_kv = (span(x, order) for x in ends)
        rows = (of_q, of_q, of_kv, of_kv, of_q, of_q)
        given = (x[those] for x, those in zip(case.arguments, rows, strict=False))
        found = ops.backward(*given, *(ends_of(x, order) for x in ends), **how)
        for name, those in zip(GRADIENTS, (of_q, of_kv, of_kv), strict=True):
            assert torch.equal(bits(getattr(found, name)), bits(getattr(whole, name)[those])), order
