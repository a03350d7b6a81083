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
from labkernels.probing.report import Defect, Fact, defect

LIVE = 6  # few enough that the order of the sum seldom changes a bit of the output
KNOWN = 0.15  # a larger share of differing bits means that none of the known ways was met
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "e4m3"}
TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


def allowed(dtype: torch.dtype) -> set[str]:
    """Return the formats of P that cost no accuracy that the inputs have."""
    more = {torch.bfloat16: {"fp16"}, torch.float8_e4m3fn: {"fp16", "bf16", "e5m2"}}
    name = NAMES.get(dtype, "fp32")
    return {"fp32", "tf32", name, f"{name} after the division", *more.get(dtype, set())} - (
        {"tf32"} if dtype == torch.float32 else set()
    )


def _cut(x: np.ndarray, bits: int, least: int = -(10**6)) -> np.ndarray:
    """Return x truncated to a number of significant bits."""
    _, exponent = np.frexp(x)
    step = np.ldexp(1.0, np.maximum(exponent - bits, least))
    return np.floor(x / step) * step


def ranked(c: Case) -> list[tuple[float, str, str]]:
    """Return (share of bits that differ, format of P, denominator) of all ways, nearest first."""
    s, dtype = c.s, c.kernel.dtype
    live, width = min(LIVE, s.keys), min(9, s.dim)
    # Among the last keys of a request, which every mask but one shows to its last query; in one
    # tile, since P is rounded against the maximum of its tile.
    first = np.zeros(s.batch, int) if c.model.top_left else np.maximum(c.lens - live, 0) // 16 * 16
    lives = (np.arange(s.keys) >= first[:, None]) & (np.arange(s.keys) < first[:, None] + live)
    q = np.zeros_like(c.zero)
    q[..., 0] = 8.0
    q[..., 1:width] = c.rng.standard_normal((*q.shape[:3], width - 1))
    k = np.zeros_like(c.k)
    k[..., 1:width] = c.rng.standard_normal((*k.shape[:3], width - 1)) * 1.5
    k = np.where(lives[:, None, :, None], k, 0)
    k[..., 0] = np.where(lives, 0, -30.0 / c.model.scale / 8)[:, None]
    k, q = c.rounded(k), c.rounded(q)
    v = c.rounded(c.rng.standard_normal(c.v.shape) + 0.5)
    out = c.call(q, k, v)
    scores = c.scores(q, k)
    enough = (c.seen | ~lives[:, None, None]).all(-1)
    top = scores.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(scores - top)
    sink = 0.0
    if c.model.sinks is not None:
        sink = np.exp(np.asarray(c.model.sinks)[:, None, None] - top)
    total, vv = np.maximum(e.sum(-1, keepdims=True) + sink, 1e-300), c.of_heads(v)
    ways = {"fp32": e, **{name: rounded(e, to) for name, to in TORCH.items()}}
    ways |= {"bf16 truncated": _cut(e, 8), "fp16 truncated": _cut(e, 11, -24), "tf32": _cut(e, 11)}
    said = []
    for name, x in ways.items():
        said.append((name, "unrounded", x @ vv / total))
        sums = np.maximum(x.sum(-1, keepdims=True) + sink, 1e-300)
        said.append((name, "rounded", x @ vv / sums))
    for name in ("bf16", "fp16", "e4m3"):
        said.append(
            (f"{name} after the division", "of P itself", rounded(e / total, TORCH[name]) @ vv)
        )
    out_dtype = c.kernel.out_dtype or dtype
    miss = []
    for name, den, x in said:
        differ = (rounded(x, out_dtype) != out)[enough]
        if out_dtype == torch.float32:
            # Sums of few terms in fp32: some units in the last place.
            differ = ~(np.abs(x - out) <= 2e-6 * (1 + np.abs(x)))[enough]
        miss.append((float(differ.mean()) if differ.size else 1.0, name, den))
    return sorted(miss)


def coarse_p(c: Case, rows: np.ndarray) -> Defect | None:
    """Return a defect if the outputs are those of a P in a coarser format than allowed."""
    share, name, _ = ranked(c)[0]
    if share > KNOWN or name in allowed(c.kernel.dtype):
        return None
    ev = f"{share:.2%} of output bits differ from this prediction"
    return defect(LESS_EXACT, f"P is {name}", ev, rows)


def policy(c: Case) -> tuple[list[Fact], Defect | None]:
    """Return the facts P and denominator, and a defect if P is coarser than the formats need."""
    before = c.kernel.calls
    miss = ranked(c)
    share, name, _ = miss[0]
    calls = c.kernel.calls - before
    if share >= KNOWN:
        ev = f"nearest is {name}, of whose bits {share:.1%} differ"
        why = "not read: no known format of P explains the bits"
        return [Fact("P", why, ev, calls), Fact("denominator", why, ev, calls)], None
    same = [n for m, n, _ in miss if m <= share + 0.002]
    names = list(dict.fromkeys(same))
    # Formats that explain the bits equally well cannot be told apart by this call.
    dens = list(dict.fromkeys(d for m, n, d in miss if n == name and m <= share + 0.002))
    other = next((x for x in miss if x[1] not in names), miss[-1])
    ev = f"{share:.2%} of bits differ; next is {other[1]}, {other[0]:.1%}"
    facts = [
        Fact("P", " or ".join(names), ev, calls),
        Fact("denominator", "fp32" if name == "fp32" else " or ".join(dens), ev, calls),
    ]
    if any(n in allowed(c.kernel.dtype) for n in names):
        return facts, None
    words = f"{share:.2%} of output bits differ from this prediction"
    return facts, defect(LESS_EXACT, f"P is {name}", words)
