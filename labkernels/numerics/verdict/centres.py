"""What P's rounding does about the mean of V, which a kernel may take off V and add back."""

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import ZERO, Array, moved, namespace, to_numpy
from labkernels.numerics.truth.frame import Frame
from labkernels.numerics.truth.problem import Problem, keys_of
from labkernels.numerics.truth.rows import Rows
from labkernels.numerics.truth.threads import over_rows
from labkernels.policy import NumericPolicy

ABOVE = 4.5  # log2 units by which the number that stands for a row's maximum may exceed it
SIGMAS = 6.0  # most standard deviations of roundings about a mean that an error may have


def about_mean(problem: Problem, policy: NumericPolicy) -> np.ndarray:
    """Return the standard deviation that P's rounding has about the mean of V, in any row's sum.

    The weight of a row's maximum is rounded, as it is where another number stands for that.
    Shapes: [total_q, Hq, Dv].
    """
    least = 2.0**ABOVE * formats.named(policy.p).smallest_subnormal

    def of_rows(rows: Rows) -> Array:
        alone, total = ZERO, ZERO
        for _, _, p, values in Frame(rows, narrow=False).weighted_blocks():
            xp = namespace(p)
            spacing = xp.where(p > 0, xp.clip(rounding.quantum(p, policy.p), least, None), 0.0)
            alone = alone + (spacing**2 / 12).sum(-1)[..., None]
            total = total + spacing**2 / 12 @ values
        heads = range(rows.kv_first, rows.kv_last)
        means = [keys_of(problem, "v", head, rows.request).mean(0) for head in heads]
        mean, width = moved(np.stack(means)[:, None], rows.o), problem.out_shape[-1]
        found = total[..., width:] - 2 * mean * total[..., :width] + mean**2 * alone
        return namespace(rows.o).clip(found, 0.0, None) ** 0.5 / rows.softmax.divisor

    found = problem.zeros(*problem.out_shape)
    for rows, of_these in over_rows(problem, of_rows):
        rows.put(found, of_these)
    return to_numpy(found)
