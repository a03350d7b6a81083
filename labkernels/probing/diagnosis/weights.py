"""All parts are right one by one; the weights are not once maxima move."""

from labkernels.defects import MERGE, SCORES, WEIGHTS
from labkernels.probing.observed import FALLING, RANDOM, RISING, Observed
from labkernels.probing.reading import CELLS, DISTANCE, FUNCTION, OK, SCALE, Reading
from labkernels.probing.report import Defect, defect


def of_weights(o: Observed) -> Defect | None:
    """A rescale shows where maxima rise along the keys, a merge whichever way they move."""
    bad: list[Reading] = [o.reads[x] for x in (RANDOM, RISING, FALLING) if o.any_bad(x)]
    if not bad:
        return None
    r = next((x for x in bad if x.kind == CELLS), bad[0])
    ev = f"{', '.join(x.name for x in bad)} wrong; K read, Q read and q = 0 right"
    if r.kind in (SCALE, DISTANCE, FUNCTION):
        return defect(SCORES, f"with {r.name} scores: {r.words}", ev, r.rows)
    both = all(o.reads[x].kind != OK for x in (RISING, FALLING))
    kind = MERGE if both and r.kind == CELLS else WEIGHTS
    sentence = f"scores and counts are right one by one, yet with {r.name} scores: {r.words}"
    return defect(kind, sentence, ev, r.rows, keys=r.keys)
