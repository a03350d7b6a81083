"""Lengths around the edges of tiles, and long ones with several steps for each warp and split.

Isolates: the number of keys alone. Calls: one a length. Read: lengths whose output is wrong, which
are then read as a case of their own; lengths that the kernel refuses.
"""

from dataclasses import replace

import numpy as np

from labkernels.probing.case import Case, Sizes
from labkernels.probing.experiments.inputs import Compared, against
from labkernels.probing.layouts import Refused
from labkernels.probing.report import Datasheet

EDGES = (1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 192, 256, 257)
LONG = (1025, 2048)


def cases(base: Case, lengths: tuple[int, ...], sheet: Datasheet):
    """Yield (case, one random call against float64) of each length that is not refused."""
    s = base.s
    for n in lengths:
        batch = 1 if n > 1000 else min(s.batch, 2)
        m = min(s.queries, n)
        sizes: Sizes = replace(s, batch=batch, queries=m, keys=n, lens=s.lens and (n,) * batch)
        if n > 1000:
            sizes = replace(sizes, queries=min(m, 5))
        c = Case(base.kernel, sizes, base.model, f"{n} keys", n, base.knobs)
        if n > 1000:
            q, k, c.v = _many_steps(c)
        else:
            q, k = c.q, c.k
        try:
            found: Compared = against(c, f"{n} keys", q, k, c.v)
        except Refused as why:
            sheet.refused.append(f"{m} queries, {n} keys: {why}")
            continue
        yield c, found


def _many_steps(c: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs whose maximum rises a little in most tiles, and a V of one sign.

    What came before still has weight when a rescale is left out, and shows in the sum.
    """
    q, k = 0.7 * c.q, c.k.copy()
    q[..., 0] = 1.0 / c.model.scale
    k[..., 0] = np.linspace(-0.8, 0.8, c.s.keys)
    return c.rounded(q), c.rounded(k), c.rounded(0.1 * c.v + c.row)
