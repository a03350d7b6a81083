"""Special inputs against float64: what random numbers do not reach; and their log-sum-exps.

Isolates: large and small V, outliers, offsets, large and negative scores, one dominant key, equal
keys, terms that cancel; in MLA q_nope, which is 0 in the readings, so that the latent, K and V at
once, may be one-hot. Calls: 11 a case, and 1 for MLA (9 where that is wrong). Read: the rows
further from float64 than rounding allows, and which inputs (and blocks of channels) show them; the
base of the log-sum-exp that fits best, and rows with another one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.defects import LESS_EXACT, LSE, SCORES, STORE, VALUES, WEIGHTS
from labkernels.probing.case import Case
from labkernels.probing.layouts import unit
from labkernels.probing.reading import Kind, Reading
from labkernels.probing.report import Fact, Findings, defect

CANCEL = "terms that cancel"
OF_SCORES = {"scores with an offset", CANCEL, "large scores", "negative scores", "one large key"}
OF_VALUES = {"large V", "V with an outlier", "V with an offset", "small V"}
ROUNDING = 0.15  # log weights off by less than this, in no pattern, are roundings
LATENT, BLOCKS = "product with the latent", 8
BASES = {"e": 1.0, "2": math.log(2)}
LSE_ERROR = 1e-3  # at most: sums in fp32 and an exp2 by a cubic stay well below


@dataclass
class Compared:
    """One call against float64. Shapes: rows [B, H, M], ratio [B, H, M, Dv] (1: at the bound)."""

    name: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    out: np.ndarray
    lse: np.ndarray | None
    want_lse: np.ndarray
    ratio: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """The rows that are further from float64 than rounding allows."""
        return ~(self.ratio.max(-1) <= 1)


def against(c: Case, name: str, q, k, v, slack: float = 1.0, more=0.0, **how) -> Compared:
    """Call the kernel, and hold its output against float64; more: a further product of Q and K.

    The bound: a rounding of the output, one and a half of P (with its sum), 1e-4 for an exp2 by a
    cubic, 2e-5 for fp32 sums; and what underflows.
    """
    out, lse = c.answer(q, k, v, **how)
    want, mass, want_lse = c.expected(q, k, v, more)
    u_in, u_out = unit(c.kernel.dtype), unit(c.kernel.out_dtype)
    terms = 1.5 * max(u_in, u_out) + 1e-4 * (c.u > 1e-6) + 2e-5
    bound = slack * (u_out * np.abs(want) + terms * mass + 4 * c.floor * (1 + np.abs(v).max()))
    off = np.abs(out - want) / np.maximum(bound, 1e-300)
    ratio = np.where(np.isfinite(out), off, np.inf)
    return Compared(name, q, k, v, out, lse, want_lse, ratio)


def families(c: Case) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield special inputs: name, q, k, v."""
    s, q, k, v = c.s, c.q, c.k, c.v
    yield "random", q, k, v
    yield "large scores", c.rounded(4 * q), k, v
    yield "V with an offset", q, k, c.rounded(v + 4)
    yield "large V", q, k, c.rounded((200 if c.u < 0.02 else 30) * v)
    yield "small V", q, k, c.rounded(v / 64)
    spike = v.copy()
    spike[..., 5 % s.keys, :] *= 30
    yield "V with an outlier", q, k, c.rounded(spike)
    k2, q2 = k.copy(), q.copy()
    k2[..., 3] += 6
    q2[..., 3] = 8
    yield "scores with an offset", c.rounded(q2), c.rounded(k2), v
    yield "negative scores", c.rounded(-np.abs(q)), c.rounded(np.abs(k)), v
    big = k.copy()
    big[..., s.keys // 2, :] = 8
    yield "one large key", c.rounded(np.abs(q)), c.rounded(big), v
    yield "equal keys", q, np.broadcast_to(k[:, :, :1], k.shape), v
    # A channel and its partner cancel, far apart: partial sums are large, and roundings show.
    qc = c.rounded(c.rng.uniform(4, 8, (1, 1, 1, s.dim)))
    kc, half = c.rounded(3 * c.rng.standard_normal(k.shape)), s.dim // 2
    partner = -kc[..., :half] * qc[0, 0, 0, :half] / qc[0, 0, 0, half : 2 * half]
    kc[..., half : 2 * half] = c.rounded(partner)
    yield CANCEL, np.broadcast_to(qc, q.shape), kc, v


def special(c: Case) -> Findings:
    """Try all special inputs: return the defect that they alone show, and the fact of the LSE."""
    found = c.compared = [
        against(c, name, *x, 3.0 if name == CANCEL else 1.0) for name, *x in families(c)
    ]
    return [*diagnosed(c, found), *of_lse(found)]


def diagnosed(c: Case, compared: list[Compared]) -> Findings:
    """Return a defect if special inputs alone show it, all readings being right."""
    bad = [x for x in compared if x.rows.any()]
    if not bad:
        return []
    x, names = bad[0], {b.name for b in bad}
    said, channels = ", ".join(sorted(names)), (x.ratio > 1).any((0, 1, 2))
    ev = f"{said}: {x.ratio.max():.3g} times the bound"
    if not np.isfinite(x.out[x.rows]).all():
        kind = WEIGHTS if x.name in OF_SCORES or x.name == "random" else STORE
        sentence = f"NaN or infinity with {x.name}"
    elif names == {CANCEL}:
        kind, sentence = LESS_EXACT, "Q, K or the scores are rounded more than needed"
        channels = None
    elif names <= OF_SCORES:
        (kind, sentence), channels = _weights(c, x), None
    elif names <= OF_VALUES:
        kind = STORE if names <= {"large V", "small V"} else VALUES
        sentence = f"with {said} V or the output is altered (clipped, or in steps)"
    elif max(b.ratio.max() for b in bad) < 8 and channels.mean() > 0.5:
        kind, sentence = LESS_EXACT, "V, P or sums are rounded more than the formats need"
    else:
        kind, sentence = VALUES, "the weights are right, but not their product with V"
        sentence += ": V in another format or order"
    return [defect(kind, sentence, ev, x.rows, channels=channels)]


def _weights(c: Case, x: Compared) -> tuple[str, str]:
    """Return the class and the sentence of inputs whose weights are wrong."""
    r = Reading(x.name, c, c.read(x.q, x.k), c.scores(x.q, x.k))
    if r.most < ROUNDING:
        words = f"scores are rounded more than needed: log weights off by up to {r.most:.3g}"
        return LESS_EXACT, f"{words} with {x.name}"
    kind = WEIGHTS if r.kind in (Kind.CELLS, Kind.ROW, Kind.MISSING) else SCORES
    words = r.words or "not the weights, but their product with V"
    return kind, f"weights are wrong with {x.name}: {words}"


def of_lse(compared: list[Compared]) -> Findings:
    """Return the fact, and a defect if some numbers are others."""
    seen = [x for x in compared if x.lse is not None]
    if not seen:
        return [Fact("LSE", "not returned", "the function returns the output alone", 0)]
    got, want = (np.stack([x.lse for x in seen]), np.stack([x.want_lse for x in seen]))
    ok = np.isfinite(want)
    if not ok.any():
        return [Fact("LSE", "not read", "no row has keys", 0)]
    off = {}
    for base, f in BASES.items():
        size = np.maximum(1, np.abs(want / f))
        off[base] = np.where(ok, np.abs(got - want / f) / size, 0.0)
    base = min(off, key=lambda x: np.nan_to_num(np.median(off[x][ok]), nan=np.inf))
    wrong = ~(off[base] <= LSE_ERROR)
    most = float(np.max(np.where(np.isfinite(off[base]), off[base], np.inf)))
    ev = f"largest error {most:.2g} of {int(ok.sum())}"
    if not wrong.any():
        return [Fact("LSE", f"natural scores, base {base}, of the sum", ev, 0)]
    gap = (got - want / BASES[base])[wrong & np.isfinite(got)]
    factor = float(np.median(got[ok] / want[ok]))
    how = f"off by {np.median(gap):.4g}" if gap.size else "not finite"
    if gap.size and wrong[ok].mean() > 0.9:
        if np.ptp(gap) < 2e-3 * max(1.0, abs(float(np.median(gap)))):
            how += " everywhere"
        elif np.ptp((got / np.where(want == 0, 1, want))[wrong]) < 1e-3 * abs(factor):
            how = f"{factor:.4g} times the natural one everywhere"
    mistake = defect(LSE, f"the log-sum-exp is {how}", f"{ev}, base {base}", wrong.any(0))
    return [Fact("LSE", f"wrong: {how}", ev, 0), mistake]


def of_latent(c: Case) -> Findings:
    """Return MLA's fact, and a defect if scores with q_nope are wrong."""

    def wrong(x: np.ndarray) -> np.ndarray:
        more = x @ c.of_heads(c.v).swapaxes(-1, -2)
        return against(c, "q_nope", c.q, c.k, c.v, nope=x, more=more).rows

    x = c.rounded(0.5 * c.rng.standard_normal((*c.q.shape[:3], c.s.dim_v)))
    rows, block = wrong(x), np.arange(c.s.dim_v) // (c.s.dim_v // BLOCKS)
    if not rows.any():
        return [Fact(LATENT, "as asked", "random q_nope", 1)]
    bad = [i for i in range(BLOCKS) if wrong(np.where(block == i, 4 * x, 0)).any()]
    fact = Fact(LATENT, "wrong", "random q_nope, then blocks", 1 + BLOCKS)
    sentence = "the product of q_nope and the latent is another"
    return [fact, defect(SCORES, sentence, fact.evidence, rows, channels=np.isin(block, bad))]
