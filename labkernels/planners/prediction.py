"""Which query heads of a request change their bits between two cuts."""

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.emulation.running_max import attend
from labkernels.planners.cut import Cut, NotKnown


def changed_heads(
    scores_log2: np.ndarray,
    v: np.ndarray,
    cut: Cut,
    other: Cut,
    *,
    dtype: str,
    requests: tuple[int, int] = (0, 0),
) -> np.ndarray:
    """Return which heads' stored outputs differ between two cuts of a request.

    The prediction rounds P relative to the running maximum, partial outputs and the output, and
    nothing else. A head whose P and partial outputs agree can still change by the order of fp32
    sums; this is rare, and not predicted. requests: the request's number in each cut.
    Raises: NotKnown for a kernel whose rounding of P was not read.
    Shapes: scores_log2 [..., n] of one query, exact and times the scale; v [..., n, D], broadcast;
    result as scores_log2 without the keys.
    """
    if cut.arithmetic(requests[0]) == other.arithmetic(requests[1]):
        return np.zeros(scores_log2.shape[:-1], bool)
    pairs = ((cut, requests[0]), (other, requests[1]))
    left, right = (output(scores_log2, v, of, dtype=dtype, request=i) for of, i in pairs)
    same: np.ndarray = (left == right).all(axis=-1)  # a NaN is not the same
    return ~same


def output(
    scores_log2: np.ndarray, v: np.ndarray, cut: Cut, *, dtype: str, request: int = 0
) -> np.ndarray:
    """Return the stored output that a cut predicts. Shapes: as for changed_heads; out [..., D]."""
    if not cut.p:
        raise NotKnown(f"how {cut.kernel} rounds P was not read")
    splits = cut.splits[request]
    p, partials = (dtype if x == "input" else x for x in (cut.p, cut.partials))
    out = attend(
        scores_log2,
        v,
        p_format=p,
        partials=partials if len(splits) > 1 else "",
        keys=cut.tile_keys,
        order=cut.order,
        keys_per_split=splits[0][1],
        chains=cut.chains,
    )
    return rounding.round_to(out, dtype)
