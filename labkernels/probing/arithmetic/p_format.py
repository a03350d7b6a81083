"""The format of P and what the denominator sums, from the bits of one call.

Isolates: few keys are live (all others are below e^-30), so that no order of sums matters, and the
output is a short formula of the format of P and of the denominator. Calls: 1. Read: of all pairs,
the one with the fewest output bits that differ.
"""

import numpy as np
import torch

from labkernels.defects import LESS_EXACT
from labkernels.probing.case import Case
from labkernels.probing.layouts import rounded
from labkernels.probing.report import Defect, Fact, Findings, defect

LIVE = 6  # few enough that the order of the sum seldom changes a bit of the output
KNOWN = 0.15  # a larger share of differing bits means that none of the known ways was met
FORMATS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


def allowed(dtype: torch.dtype) -> set[str]:
    """Return the formats of P that cost no accuracy that the inputs have."""
    name = next((name for name, to in FORMATS.items() if to == dtype), "fp32")
    more = {"bf16": {"fp16"}, "e4m3": {"fp16", "bf16", "e5m2"}}.get(name, set())
    wide = "fp32" if name == "fp32" else "tf32"
    return {"fp32", wide, name, f"{name} after the division", *more}


def _cut(x: np.ndarray, bits: int, least: int = -(10**6)) -> np.ndarray:
    """Return x truncated to a number of significant bits."""
    _, exponent = np.frexp(x)
    step = np.ldexp(1.0, np.maximum(exponent - bits, least))
    return np.floor(x / step) * step


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
    ways = {"fp32": e, **{name: rounded(e, to) for name, to in FORMATS.items()}}
    ways |= {"bf16 truncated": _cut(e, 8), "fp16 truncated": _cut(e, 11, -24), "tf32": _cut(e, 11)}
    said = []
    for name, x in ways.items():
        sums = np.maximum(x.sum(-1, keepdims=True) + sink, 1e-300)
        said += [(name, "unrounded", x @ vv / total), (name, "rounded", x @ vv / sums)]
    for name in ("bf16", "fp16", "e4m3"):
        x = rounded(e / total, FORMATS[name]) @ vv
        said.append((f"{name} after the division", "of P itself", x))
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
        ev = f"nearest is {name}, of whose bits {share:.1%} differ"
        why = "not read: no known format of P explains the bits"
        return [Fact(x, why, ev, 1) for x in ("P", "denominator")]
    # Formats that explain the bits equally well cannot be told apart by this call.
    names = list(dict.fromkeys(n for m, n, _ in miss if m <= share + 0.002))
    dens = list(dict.fromkeys(d for m, n, d in miss if n == name and m <= share + 0.002))
    other = next((x for x in miss if x[1] not in names), miss[-1])
    ev = f"{share:.2%} of bits differ; next is {other[1]}, {other[0]:.1%}"
    denominator = "fp32" if name == "fp32" else " or ".join(dens)
    facts = [Fact("P", " or ".join(names), ev, 1), Fact("denominator", denominator, ev, 1)]
    return facts if allowed(c.kernel.dtype) & {*names} else [*facts, _coarse(share, name)]


def coarse_p(c: Case, rows: np.ndarray) -> Defect | None:
    """Return a defect if the outputs are those of a P in a coarser format than allowed."""
    share, name, _ = ranked(c)[0]
    known = share <= KNOWN and name not in allowed(c.kernel.dtype)
    return _coarse(share, name, rows) if known else None


def _coarse(share: float, name: str, rows: np.ndarray | None = None) -> Defect:
    ev = f"{share:.2%} of output bits differ from this prediction"
    return defect(LESS_EXACT, f"P is {name}", ev, rows)
