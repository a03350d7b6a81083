"""All parts are right one by one; the weights are not once maxima move."""

from labkernels.defects import LESS_EXACT, MERGE, SCORES, WEIGHTS
from labkernels.probing.experiments.p_format import coarse_p
from labkernels.probing.observed import FALLING, RANDOM, RISING, Observed
from labkernels.probing.reading import (
    CELLS,
    DISTANCE,
    FUNCTION,
    OK,
    OTHER,
    ROW,
    SCALE,
    SMALL_LOST,
    Reading,
)
from labkernels.probing.report import Defect, defect


def joined(o: Observed, r: Reading) -> str:
    """Return the class of factors that move with scores: a merge's, or a rescale's.

    A rescale is at work where maxima rise along the keys, or where they fall if a kernel walks from
    the end; a merge whichever way they go.
    """
    both = all(o.reads[x].kind != OK for x in (RISING, FALLING))
    return MERGE if both and r.kind == CELLS else WEIGHTS


def of_weights(o: Observed) -> Defect | None:
    """Read the weights with random, rising and falling scores."""
    bad: list[Reading] = [o.reads[x] for x in (RANDOM, RISING, FALLING) if o.any_bad(x)]
    if not bad:
        return None
    r = next((x for x in bad if x.kind == CELLS), bad[0])
    ev = f"{', '.join(x.name for x in bad)} wrong; K read, Q read and q = 0 right"
    if r.kind in (SCALE, DISTANCE, FUNCTION):
        return coarse_p(o.c, r.rows) or defect(
            SCORES, f"with {r.name} scores: {r.words}", ev, r.rows
        )
    if r.kind in (ROW, OTHER, SMALL_LOST) and max(x.most for x in bad) < 6 * o.c.tol:
        sentence = "sums or weights are rounded more than the formats need"
        return coarse_p(o.c, r.rows) or defect(LESS_EXACT, sentence, ev, r.rows)
    sentence = f"scores and counts are right one by one, yet with {r.name} scores: {r.words}"
    return defect(joined(o, r), sentence, ev, r.rows, keys=r.keys)
