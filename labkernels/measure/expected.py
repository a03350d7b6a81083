"""The error to expect of a decode, from its inputs and its policy alone."""

import numpy as np

from labkernels.kernels.spec import NumericPolicy
from labkernels.measure.cases import DecodeCase
from labkernels.numerics import error_model
from labkernels.numerics.rounds import SPLITS_ALLOWED, Rounds


def decode_sigma(case: DecodeCase, *, policy: NumericPolicy) -> np.ndarray:
    """Return the standard deviation that rounding gives each element of the output.

    Shapes: [B, Hq, D]; numerics.metrics.rms of it is the RMSE to expect, of a head or a sample.
    Error: as numerics.error_model.sigma.
    """
    return error_model.sigma(case.problem(), rounds_of(policy, case.dtype))


def rounds_of(
    policy: NumericPolicy,
    dtype: str,
    *,
    tensor_cores: bool = True,
    splits: int = SPLITS_ALLOWED,
    arch: str = "sm_90",
) -> Rounds:
    """Return how a kernel of this policy rounds, in the words of numerics.

    Units: dtype names the format of the inputs. What no error is allowed for counts as fp32.
    """
    return Rounds(
        p_format=policy.p_format(dtype).replace("fp64", "fp32"),
        out_format=policy.out_format(dtype),
        denominator=policy.denominator,
        # torch's own exponential is nearer to the truth than the special-function unit
        exp2=policy.exp2.replace("library", "mufu"),
        tensor_cores=tensor_cores,
        arch=arch,
        splits=splits,
    )
