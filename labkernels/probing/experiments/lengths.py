"""Lengths around the edges of tiles, and long ones with several steps for each warp and split.

Isolates: the number of keys alone. Calls: one a length. Read: lengths whose output is wrong, which
are then read as a case of their own; lengths that the kernel refuses.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from labkernels.probing.case import Case
from labkernels.probing.experiments.inputs import Compared, against
from labkernels.probing.layouts import Refused
from labkernels.probing.report import Datasheet

EDGES = (1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 192, 256, 257)
LONG = (1025, 2048)


def tried(base: Case) -> tuple[int, ...]:
    """Return the numbers of keys to try: all in decode, and half of the edges in prefill."""
    return (*(EDGES if base.s.queries == 1 else EDGES[1::2]), *LONG)


def wrong(base: Case, sheet: Datasheet) -> Iterator[tuple[Case, Compared]]:
    """Yield the case of each length whose output is wrong, and its call; refusals are noted."""
    s = base.s
    for n in tried(base):
        m, batch = min(s.queries, n), min(s.batch, 2)
        sizes = replace(s, batch=batch, queries=m, keys=n, lens=s.lens and (n,) * batch)
        if n in LONG:
            sizes = replace(sizes, batch=1, queries=min(m, 5), lens=s.lens and (n,))
        c = Case(base.kernel, sizes, base.model, f"{n} keys", n, base.knobs)
        q, k = c.q, c.k
        if n in LONG:
            q, k, c.v = _many_steps(c)
        try:
            found = against(c, f"{n} keys", q, k, c.v)
        except Refused as why:
            sheet.refused.append(f"{m} queries, {n} keys: {why}")
            continue
        if found.rows.any():
            yield c, found


def _many_steps(c: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs whose maximum rises a little in most tiles, and a V of one sign.

    What came before still has weight when a rescale is left out, and shows in the sum.
    """
    q, k = 0.7 * c.q, c.k.copy()
    q[..., 0] = 1.0 / c.model.scale
    k[..., 0] = np.linspace(-0.8, 0.8, c.s.keys)
    return c.rounded(q), c.rounded(k), c.rounded(0.1 * c.v + c.row)
