"""Gradients through torch.autograd: dV shows the weights, dQ and dK are held against float64.

Isolates: the backward pass: dV is P^T dO, so that it shows the weights alone. Calls: 2 a case.
Read: factors of each gradient, rows and keys that are wrong, and whether bits repeat.
"""

import numpy as np

from labkernels.defects import LESS_EXACT, SCORES, WEIGHTS
from labkernels.probing.case import Case
from labkernels.probing.layouts import Refused
from labkernels.probing.report import Defect, Fact, defect

NAMES = ("dQ", "dK", "dV")


def gradients(c: Case) -> tuple[list[Fact], Defect | None]:
    """Return the facts of the backward pass, and a defect if a gradient is wrong."""
    do = c.rounded(c.rng.standard_normal((*c.q.shape[:3], c.s.dim_v)))
    got, again = (c.kernel.backward(c.q, c.k, c.v, do, c.s.lens, c.knobs) for _ in range(2))
    same = all(np.array_equal(x, y, equal_nan=True) for x, y in zip(got, again, strict=True))
    facts = [Fact("gradients deterministic", "yes" if same else "no", "two equal calls", 2)]
    want, mass = _float64(c, do)
    bad, ratios = [], {}
    for name, x, y, size in zip(NAMES, got, want, mass, strict=True):
        # Roundings of P, dP, dS, dO and the output, each a unit of a sum's terms.
        bound = 6 * c.tol * size + 4 * c.floor
        with np.errstate(all="ignore"):
            off = ~(np.abs(x - y) <= bound)
            large = np.abs(y) > 0.5 * np.abs(y).max()
            ratios[name] = float(np.median((x / y)[large]))
        if off.any():
            bad.append((name, x, y, off))
        most = float(np.abs(x - y).max())
        value = "right" if not off.any() else f"wrong, {ratios[name]:.4g} times it at large ones"
        facts.append(Fact(name, value, f"largest error {most:.2g}", 0))
    return facts, _diagnosed(c, bad, ratios) if bad else None


def _diagnosed(c: Case, bad, ratios) -> Defect:
    names = [x[0] for x in bad]
    name, x, y, off = next((b for b in bad if b[0] == "dV"), bad[0])
    kind = WEIGHTS if name == "dV" else SCORES
    with np.errstate(all="ignore"):
        left = np.abs(x - ratios[name] * y).max() / np.abs(y).max()
    words = f"wrong by up to {np.abs(x - y).max():.3g}"
    if left < 6 * c.tol and abs(ratios[name] - 1) > 2 * c.tol:
        words = f"by a factor of {ratios[name]:.5g}"
    elif np.abs(x - y).max() < 0.03 * np.abs(y).max():
        kind, words = LESS_EXACT, f"less exact than its formats, by {np.abs(x - y).max():.3g}"
    ev = f"{', '.join(names)} against float64"
    wrong = off.any(-1)
    if name == "dQ":
        return defect(kind, f"{name} is {words}", ev, wrong)
    heads = np.repeat(wrong.any(-1), c.group, 1)
    rows = np.broadcast_to(heads[..., None], c.q.shape[:3])
    return defect(kind, f"{name} is {words}", ev, rows, keys=wrong.any((0, 1)))


def _float64(c: Case, do: np.ndarray):
    """Return dQ, dK, dV in float64, and the sums of their terms' magnitudes."""
    if c.model.variant.soft_cap or c.model.top_left:
        raise Refused("gradients with a soft cap or a top-left mask are not judged")
    k, v = c.of_heads(c.k), c.of_heads(c.v)
    p, _ = c.weights(c.scores(c.q, c.k))
    dp = do @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c.model.scale
    size = p * (np.abs(do) @ np.abs(v).swapaxes(-1, -2)) * c.model.scale * 2

    def grouped(x: np.ndarray) -> np.ndarray:
        return x.reshape(c.s.batch, c.s.kv_heads, c.group, *x.shape[2:]).sum(2)

    def turned(x: np.ndarray) -> np.ndarray:
        return x.swapaxes(-1, -2)

    want = ds @ k, grouped(turned(ds) @ c.q), grouped(turned(p) @ do)
    mass = (
        size @ np.abs(k),
        grouped(turned(size) @ np.abs(c.q)),
        grouped(turned(p) @ np.abs(do)),
    )
    return want, mass
