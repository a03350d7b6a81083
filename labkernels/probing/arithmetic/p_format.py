"""The format of P and what the denominator sums, from the bits of one call.

Isolates: few keys are live (all others are below e^-30), so that no order of sums matters, and the
output is a short formula of the format of P and of the denominator. Calls: 1. Read: of all pairs,
the one with the fewest output bits that differ.
"""

import numpy as np
import torch

from labkernels import formats
from labkernels.defects import LESS_EXACT
from labkernels.numerics.rounding import round_to
from labkernels.probing.case import Case
from labkernels.probing.layouts import rounded
from labkernels.probing.report import Defect, Fact, Findings, defect

LIVE = 6  # few enough that the order of the sum seldom changes a bit of the output
KNOWN = 0.15  # a larger share of differing bits means that none of the known ways was met
ROUNDED = ("bf16", "fp16", "e4m3", "e5m2")


def fine(p: str, dtype: str) -> bool:
    """Whether a P of this format costs no accuracy that inputs of a format have."""
    more = {f"{dtype} after the division", "e5m2" if dtype == "e4m3" else dtype}
    return p in more or (p in formats.FORMATS and not formats.coarser(p, dtype))


def ranked(c: Case) -> list[tuple[float, str, str]]:
    """Return (share of bits that differ, format of P, denominator) of all ways, nearest first."""
    s = c.s
    live, width = min(LIVE, s.keys), min(9, s.dim)
    # Among the last keys of a request, which every mask but one shows to its last query; in one
    # tile, since P is rounded against the maximum of its tile.
    first = np.zeros(s.batch, int) if c.model.top_left else np.maximum(c.lens - live, 0) // 16 * 16
    place = np.arange(s.keys) - first[:, None]
    lives = (place >= 0) & (place < live)
    q, k = np.zeros_like(c.q), np.zeros_like(c.k)
    for x, size in ((q, 1.0), (k, 1.5)):
        x[..., 1:width] = size * c.rng.standard_normal((*x.shape[:3], width - 1))
    q[..., 0] = 8.0
    k = np.where(lives[:, None, :, None], k, 0)
    k[..., 0] = np.where(lives, 0, -30.0 / c.model.scale / 8)[:, None]
    k, q = c.rounded(k), c.rounded(q)
    v = c.rounded(c.rng.standard_normal(c.v.shape) + 0.5)
    out = c.call(q, k, v)
    scores, vv = c.scores(q, k), c.of_heads(v)
    enough = (c.seen | ~lives[:, None, None]).all(-1)
    e, sink, _ = c.exponentials(scores)
    total = np.maximum(e.sum(-1, keepdims=True) + sink, 1e-300)
    ways = {"fp32": e, **{name: round_to(e, name) for name in ROUNDED}}
    ways |= {f"{name} truncated": round_to(e, name, "rz") for name in ("bf16", "fp16")}
    ways["tf32"] = round_to(e, "tf32", "rz")
    said = []
    for name, x in ways.items():
        sums = np.maximum(x.sum(-1, keepdims=True) + sink, 1e-300)
        said += [(name, "unrounded", x @ vv / total), (name, "rounded", x @ vv / sums)]
    for name in ("bf16", "fp16", "e4m3"):
        said += [(f"{name} after the division", "of P itself", round_to(e / total, name) @ vv)]
    miss = []
    for name, den, x in said:
        differ = (rounded(x, c.kernel.out_dtype) != out)[enough]
        if c.kernel.out_dtype == torch.float32:
            # Sums of few terms in fp32: some units in the last place.
            differ = ~(np.abs(x - out) <= 2e-6 * (1 + np.abs(x)))[enough]
        miss.append((float(differ.mean()) if differ.size else 1.0, name, den))
    return sorted(miss)


def policy(c: Case) -> Findings:
    """Return the facts P and denominator, and a defect if P is coarser than the formats need."""
    miss = ranked(c)
    share, name, _ = miss[0]
    if share >= KNOWN:
        ev = f"nearest is {name}, of whose bits {100 * share:.1f} % differ"
        why = "not read: no known format of P explains the bits"
        return [Fact(x, why, ev, 1) for x in ("P", "denominator")]
    # Formats that explain the bits equally well cannot be told apart by this call.
    names = list(dict.fromkeys(n for m, n, _ in miss if m <= share + 0.002))
    dens = list(dict.fromkeys(d for m, n, d in miss if n == name and m <= share + 0.002))
    other = next((x for x in miss if x[1] not in names), miss[-1])
    ev = f"{100 * share:.2f} % of bits differ; next is {other[1]}, {100 * other[0]:.1f} %"
    denominator = "fp32" if name == "fp32" else " or ".join(dens)
    facts: Findings = [
        Fact("P", " or ".join(names), ev, 1),
        Fact("denominator", denominator, ev, 1),
    ]
    if not any(fine(x, c.kernel.format) for x in names):
        facts.append(_coarse(share, name))
    return facts


def coarse_p(c: Case, rows: np.ndarray) -> Defect | None:
    """Return a defect if the outputs are those of a P in a coarser format than allowed."""
    share, name, _ = ranked(c)[0]
    known = share <= KNOWN and not fine(name, c.kernel.format)
    return _coarse(share, name, rows) if known else None


def _coarse(share: float, name: str, rows: np.ndarray | None = None) -> Defect:
    ev = f"{100 * share:.2f} % of output bits differ from this prediction"
    return defect(LESS_EXACT, f"P is {name}", ev, rows)
