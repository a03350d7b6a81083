"""The torch references give the truth in float64, and the usual attention in 16 bits."""

from itertools import product

import numpy as np
import pytest
import torch

from labkernels.numerics.error import bounds
from labkernels.numerics.error.execution import Execution
from labkernels.policy import EAGER, FLOAT64
from labkernels.variant import UNMASKED
from tests.kernels.contract import NAMES, RAGGED, run_checked
from tests.kernels.decode.cases import LAYOUTS, decode_case
from tests.kernels.prefill.cases import prefill_case
from tests.kernels.variants.cases import combined, varied

# 16 ulps of float64, in ulps of fp32: torch adds in another order than the bound assumes.
FLOAT64_OVER_FP32 = 16 * 2.0**-29


LENGTHS = (0, 1, 17, 70, 20), (5, 0, 17, 130, 7)
CASES = [
    *(
        ("reference", decode_case(RAGGED, group=3, page_size=3, layout=layout, dtype=dtype))
        for layout, dtype in product(LAYOUTS, ("fp16", "bf16"))
    ),
    *(
        ("reference_prefill", prefill_case(*LENGTHS, causal=causal, layout="padded", **shape))
        for causal, page_size in product((False, True), (None, 3))
        for shape in (
            {"head_dim": 64, "page_size": page_size},
            {"head_dim": 192, "page_size": page_size, "dtype": "bf16"},
        )
    ),
]


def varied_cases():
    """Return cases of every feature alone, in pairs and together, in turns for both operations."""
    of_decode = decode_case(RAGGED, group=3)
    of_prefill = [
        prefill_case(*LENGTHS, causal=c, page_size=p, layout="padded")
        for c, p in ((False, None), (True, 3))
    ]
    for turn, variant in enumerate(combined(UNMASKED)):
        yield "reference", varied(of_decode, "reference", **variant)
        if "window_right" not in variant or turn % 2 == 0:
            case = of_prefill["window_right" not in variant and turn % 2]
            yield "reference_prefill", varied(case, "reference_prefill", **variant)


@pytest.mark.parametrize(("kernel", "case"), [*CASES, *varied_cases()])
def test_float64_is_float64(kernel, case):
    result = run_checked(case, kernel, policy=FLOAT64, sharp=False)
    assert result.out.dtype == torch.float64
    truth, _ = case.known["truth"]
    policy = FLOAT64.of(NAMES[case.q.dtype])
    bound = bounds.out_bound(case.problem(), policy, Execution(splits=1))
    assert not (np.abs(result.out.numpy() - truth) > FLOAT64_OVER_FP32 * bound).any()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_eager_rounds_p_and_out(dtype):
    """With scores that 16 bits hold exactly, only P and the output are rounded."""
    prefill = prefill_case((1, 17, 40), (30, 17, 100), dtype=dtype)
    for kernel, case in (
        ("reference", decode_case(RAGGED, dtype=dtype)),
        ("reference_prefill", prefill),
    ):
        signs = case.changed(q=case.q.sign()).with_kv(k=case.kv.k.sign())
        run_checked(signs, kernel, policy=EAGER, sharp=False)


def test_eager_rounds_its_scores_too():
    case = decode_case(RAGGED, dtype="bf16")
    with pytest.raises(AssertionError, match="out is|RMSE is|lse2 is"):
        run_checked(case, "reference", policy=EAGER)
