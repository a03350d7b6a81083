"""Lengths around the edges of tiles, and long ones with several steps for each warp and split.

Isolates: the number of keys alone. Calls: one a length. Read: lengths whose output is wrong, which
are then read as a case of their own; lengths that the kernel refuses.
"""

from dataclasses import replace

from labkernels.probing.case import Case, Sizes
from labkernels.probing.experiments.inputs import Compared, against
from labkernels.probing.layouts import Refused
from labkernels.probing.observed import inputs
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
            _, _, (_, q, k), _ = inputs(c)
        else:
            q, k = c.q, c.k
        try:
            found: Compared = against(c, f"{n} keys", q, k, c.v)
        except Refused as why:
            sheet.refused.append(f"{m} queries, {n} keys: {why}")
            continue
        yield c, found
