"""Bits of the sums over keys: M, 1 and -M, far apart and side by side.

Isolates: with q = 0 all weights are equal; channel c has M = 2^c, so that the channel where the 1
is lost tells how many bits the sum keeps. Calls: 1. Read: the first channel that is wrong, for a 1
between tiles and for one beside M in the same tile.
"""

import numpy as np

from labkernels.defects import LESS_EXACT
from labkernels.probing.case import Case
from labkernels.probing.experiments.inputs import Compared
from labkernels.probing.report import Fact, Findings, defect

MOST = 26
ENOUGH = 16  # fewer bits than any fp32 or 22-bit accumulator keeps: sums or parts in 16 bits
MORE = 1.4  # times the error that P and partial outputs in 16 bits explain, rms over many outputs
SQUARE = 0.18  # mean square of a rounding, in squares of the unit roundoff
NAMES = ("random", "V with an offset", "equal keys", "small V")


def bits(c: Case) -> Findings:
    """Return the fact, and a defect if sums keep 16 bits or fewer and errors show this.

    Partial outputs in 16 bits are honest, and keep as few bits: the errors of outputs decide.
    """
    s, n = c.s, int(c.lens.min())
    if n < 16 or s.dim_v < 2 * MOST or c.u > 0.02:
        why = "needs 16 keys, 52 channels, and V in 16 or 32 bits"
        return [Fact("accumulator", "not read", why, 0)]
    half = s.dim_v // 2
    v, unit = np.zeros((s.keys, s.dim_v)), 2.0**-10
    m = unit * 2.0 ** np.minimum(np.arange(s.dim_v) % half, MOST - 1)
    places = [n // 5, n // 5 + 1, n // 2, n * 4 // 5]
    v[places[0]], v[places[3]], v[places[2], :half], v[places[1], half:] = m, -m, unit, unit
    out = c.call(c.zero, c.k, c.like(c.v, v))
    w, _ = c.weights(c.scores(c.zero, c.k))
    want = w @ c.rounded(v)
    sees = c.seen[..., places].all(-1)
    if not sees.any():
        return [Fact("accumulator", "not read", "no row sees all places", 1)]
    near = np.abs(out - want) <= 0.2 * np.abs(want) + 2 * c.floor
    good = near[sees].mean(0) > 0.9
    kept = [int(np.argmin(np.r_[x[:MOST], False])) for x in (good[:half], good[half:])]
    value = f"{kept[0]} bits between tiles, {kept[1]} within one"
    ev, mistake = f"M, 1, -M with M to 2^26, {c.label}", None
    if min(kept) < ENOUGH:
        most = max((excess(c, x) for x in c.compared if x.name in NAMES), default=0.0)
        more = f"errors are {most:.3g} times what P and partial outputs in 16 bits explain"
        if not most <= MORE:
            mistake = defect(LESS_EXACT, f"sums over keys keep {value}", more)
        else:
            ev += "; partial outputs in 16 bits"
    return [Fact("accumulator", value, ev, 1), mistake]


def excess(c: Case, x: Compared) -> float:
    """Return the rms error of a call over that of P, partial outputs and output in 16 bits."""
    p, _ = c.weights(c.scores(x.q, x.k))
    v, tiles = c.of_heads(x.v), [slice(n, n + 16) for n in range(0, c.s.keys, 16)]
    want = p @ v
    parts = sum(np.square(p[..., tile] @ v[..., tile, :]) for tile in tiles)
    # Rounded parts may be as large as the output, or larger where they cancel.
    square = SQUARE * (np.square(p) @ np.square(v) + 2 * np.square(want) + parts)
    square = square * c.u**2 + (1e-4 * want) ** 2 + c.floor**2
    return float(np.sqrt(np.square(x.out - want).mean() / square.mean()))
