"""The error to expect of a decode, from its inputs and its policy alone."""

import numpy as np

from labkernels.kernels.spec import NumericPolicy
from labkernels.measure.accuracy import as_float64
from labkernels.measure.cases import DecodeCase
from labkernels.numerics import error_model


def decode_sigma(case: DecodeCase, *, policy: NumericPolicy) -> np.ndarray:
    """Return the standard deviation that rounding gives each element of the output.

    Shapes: [B, Hq, D]; numerics.metrics.rms of it is the RMSE to expect, of a head or a sample.
    Error: as numerics.error_model.decode_sigma.
    """
    dtype, cache = case.workload.dtype, case.cache
    return error_model.decode_sigma(
        *(as_float64(tensor) for tensor in (case.q, cache.k, cache.v)),
        cache.page_table.cpu().numpy(),
        cache.kv_len.cpu().numpy(),
        scale=case.scale,
        p_format=dtype if policy.p == "input" else policy.p,
        out_format=dtype if policy.out == "input" else policy.out,
        exp2=policy.exp2,
        denominator=policy.denominator,
    )
