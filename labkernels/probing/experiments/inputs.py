"""Special inputs against float64: what random numbers do not reach.

Isolates: large and small V, outliers, offsets, large and negative scores, one dominant key, equal
keys, terms that cancel. Calls: 11 a case. Read: the rows further from float64 than rounding allows,
and which inputs show them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.defects import LESS_EXACT, SCORES, STORE, VALUES, WEIGHTS
from labkernels.probing.case import Case
from labkernels.probing.layouts import Answer, unit
from labkernels.probing.reading import Kind, Reading
from labkernels.probing.report import Findings, defect

CANCEL = "terms that cancel"
OF_SCORES = {"scores with an offset", CANCEL, "large scores", "negative scores", "one large key"}
OF_VALUES = {"large V", "V with an outlier", "V with an offset", "small V"}
ROUNDING = 0.15  # log weights off by less than this, in no pattern, are roundings


@dataclass
class Compared:
    """One call against float64. Shapes: rows [B, H, M], ratio [B, H, M, Dv] (1: at the bound)."""

    name: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    answer: Answer
    lse: np.ndarray
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
    answer = c.answer(q, k, v, **how)
    want, mass, lse = c.expected(q, k, v, more)
    u_in, u_out = unit(c.kernel.dtype), unit(c.kernel.out_dtype)
    terms = 1.5 * max(u_in, u_out) + 1e-4 * (c.u > 1e-6) + 2e-5
    bound = slack * (u_out * np.abs(want) + terms * mass + 4 * c.floor * (1 + np.abs(v).max()))
    off = np.abs(answer.out - want) / np.maximum(bound, 1e-300)
    ratio = np.where(np.isfinite(answer.out), off, np.inf)
    return Compared(name, q, k, v, answer, lse, ratio)


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


def run(c: Case) -> list[Compared]:
    """Run all special inputs."""
    return [
        against(c, name, q, k, v, 3.0 if name == CANCEL else 1.0) for name, q, k, v in families(c)
    ]


def diagnosed(c: Case, compared: list[Compared]) -> Findings:
    """Return a defect if special inputs alone show it, all readings being right."""
    bad = [x for x in compared if x.rows.any()]
    if not bad:
        return []
    x, names = bad[0], {b.name for b in bad}
    said, channels = ", ".join(sorted(names)), (x.ratio > 1).any((0, 1, 2))
    ev = f"{said}: {x.ratio.max():.3g} times the bound"
    if not np.isfinite(x.answer.out[x.rows]).all():
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
