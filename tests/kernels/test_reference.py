"""The torch references: float64 as the truth, and the everyday 16-bit attention."""

import numpy as np
import pytest
import torch

from labkernels.kernels.paged_kv import PagedKV
from labkernels.kernels.reference.spec import EAGER, FLOAT64
from labkernels.numerics import bounds
from tests.kernels.cases import LAYOUTS, decode_case
from tests.kernels.contract import DECODERS, RAGGED, run_checked, way_of

REFERENCE = DECODERS["reference"]
# An ulp of float64 in ulps of fp32; 16 of them, as torch adds in another order than the bound has.
FLOAT64_OVER_FP32 = 16 * 2.0**-29


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_float64_is_float64(layout, dtype):
    case = decode_case(RAGGED, group=3, page_size=3, layout=layout, dtype=dtype)
    result = run_checked(case, "reference", policy=FLOAT64, sharp=False)
    assert result.out.dtype == torch.float64
    truth, _ = case.known["truth"]
    bound = bounds.out_bound(case.problem(), way_of(REFERENCE, FLOAT64, dtype, splits=1))
    assert not (np.abs(result.out.numpy() - truth) > FLOAT64_OVER_FP32 * bound).any()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_eager_rounds_p_and_out(dtype):
    """With scores that 16 bits hold exactly, P's and the output's roundings are all there is."""
    case = decode_case(RAGGED, dtype=dtype)
    cache = case.cache
    signs = PagedKV(cache.k.sign(), cache.v, cache.page_table, cache.kv_len)
    whole = case.changed(q=case.q.sign(), cache=signs)
    run_checked(whole, "reference", policy=EAGER, sharp=False)


def test_eager_rounds_its_scores_too():
    case = decode_case(RAGGED, dtype="bf16")
    with pytest.raises(AssertionError, match="out is|RMSE is|lse2 is"):
        run_checked(case, "reference", policy=EAGER)
