"""The torch references give the truth in float64, and the usual attention in 16 bits."""

import numpy as np
import pytest
import torch

from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.numerics.error import bounds
from labkernels.numerics.error.execution import Execution
from labkernels.policy import EAGER, FLOAT64
from tests.kernels.contract import RAGGED, run_checked
from tests.kernels.decode.cases import LAYOUTS, decode_case
from tests.kernels.prefill.cases import prefill_case

# 16 ulps of float64, in ulps of fp32: torch adds in another order than the bound assumes.
FLOAT64_OVER_FP32 = 16 * 2.0**-29


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_float64_is_float64(layout, dtype):
    check_float64(decode_case(RAGGED, group=3, page_size=3, layout=layout, dtype=dtype), dtype)


@pytest.mark.parametrize("page_size", [None, 3], ids=["ragged", "paged"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_prefill_in_float64_is_float64(page_size, causal):
    lengths = (0, 1, 17, 70, 20), (5, 0, 17, 130, 7)
    for head_dim, dtype in ((64, "fp16"), (192, "bf16")):
        case = prefill_case(
            *lengths,
            causal=causal,
            head_dim=head_dim,
            page_size=page_size,
            layout="padded",
            dtype=dtype,
        )
        check_float64(case, dtype, "reference_prefill")


def check_float64(case, dtype, kernel="reference"):
    result = run_checked(case, kernel, policy=FLOAT64, sharp=False)
    assert result.out.dtype == torch.float64
    truth, _ = case.known["truth"]
    bound = bounds.out_bound(case.problem(), FLOAT64.of(dtype), Execution(splits=1))
    assert not (np.abs(result.out.numpy() - truth) > FLOAT64_OVER_FP32 * bound).any()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_eager_rounds_p_and_out(dtype):
    """With scores that 16 bits hold exactly, only P and the output are rounded."""
    case = decode_case(RAGGED, dtype=dtype)
    cache = case.cache
    signs = PagedKV(cache.k.sign(), cache.v, cache.page_table, cache.kv_len)
    whole = case.changed(q=case.q.sign(), cache=signs)
    run_checked(whole, "reference", policy=EAGER, sharp=False)
    prefill = prefill_case((1, 17, 40), (30, 17, 100), dtype=dtype)
    kv = RaggedKV(prefill.kv.k.sign(), prefill.kv.v, prefill.kv.cu_seqlens)
    whole = prefill.changed(q=prefill.q.sign(), kv=kv)
    run_checked(whole, "reference_prefill", policy=EAGER, sharp=False)


def test_eager_rounds_its_scores_too():
    case = decode_case(RAGGED, dtype="bf16")
    with pytest.raises(AssertionError, match="out is|RMSE is|lse2 is"):
        run_checked(case, "reference", policy=EAGER)
