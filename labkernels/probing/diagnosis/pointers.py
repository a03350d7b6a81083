"""One tensor taken for another: K's pointer used for V, V's for K, the two exchanged."""

import numpy as np

from labkernels.defects import INDEX_K, INDEX_V
from labkernels.probing.case import Case
from labkernels.probing.report import Defect, defect


def of_pointers(c: Case) -> Defect | None:
    """Compare one random call with what other pointers would give, under the model asked for."""
    if c.k.shape != c.v.shape:
        return None
    out = c.call(c.q, c.k, c.v)
    want, mass, _ = c.expected(c.q, c.k, c.v)
    bound = 4 * c.tol * (mass + 0.1)
    wrong = ~(np.abs(out - want) <= bound)
    if not wrong.any():
        return None
    rows = wrong.any(-1)
    for kind, words, k, v in (
        (INDEX_V, "K is read in the place of V", c.k, c.k),
        (INDEX_K, "V is read in the place of K", c.v, c.v),
        (INDEX_K, "K and V are exchanged", c.v, c.k),
    ):
        other = c.expected(c.q, k, v)[0]
        if (np.abs(out - other)[rows] <= bound[rows]).all():
            return defect(kind, words, "one random call is right with these pointers", rows)
    return None
