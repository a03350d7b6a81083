"""Gradients through torch.autograd: dV shows the weights, dQ and dK are held against float64.

Isolates: the backward pass: dV is P^T dO, so that it shows the weights alone. Calls: 2 a case.
Read: factors of each gradient, rows and keys that are wrong, and whether bits repeat.
"""

import numpy as np

from labkernels.defects import LESS_EXACT, SCORES, WEIGHTS
from labkernels.probing.case import Case
from labkernels.probing.layouts import Refused
from labkernels.probing.report import Defect, Fact, Findings, defect

NAMES = ("dQ", "dK", "dV")


def of_gradients(c: Case) -> Findings:
    """Return the facts of the backward pass, and a defect if a gradient is wrong."""
    do = c.normal(*c.q.shape[:3], c.s.dim_v)
    got, again = (c.kernel.backward(c.q, c.k, c.v, do, c.s.lens, c.knobs) for _ in range(2))
    same = all(np.array_equal(x, y, equal_nan=True) for x, y in zip(got, again, strict=True))
    name, bad = "gradients deterministic", {}
    found: Findings = [Fact(name, "yes" if same else "no", "two equal calls", 2)]
    for name, x, (y, mass) in zip(NAMES, got, _float64(c, do), strict=True):
        # Roundings of P, dP, dS, dO and the output, each a unit of a sum's terms.
        off = ~(np.abs(x - y) <= 6 * c.tol * mass + 4 * c.floor)
        ratio = float(np.median((x / y)[np.abs(y) > 0.5 * np.abs(y).max()]))
        if off.any():
            bad[name] = x, y, off, ratio
        most = float(np.abs(x - y).max())
        value = f"wrong, {ratio:.4g} times it at large ones" if off.any() else "right"
        found.append(Fact(name, value, f"largest error {most:.2g}", 0))
    return [*found, _diagnosed(c, bad)] if bad else found


def _diagnosed(c: Case, bad: dict) -> Defect:
    """Say by what the first wrong gradient is wrong; dV, which shows the weights, comes first."""
    name = "dV" if "dV" in bad else next(iter(bad))
    x, y, off, ratio = bad[name]
    kind, gap = WEIGHTS if name == "dV" else SCORES, np.abs(x - y).max()
    words = f"wrong by up to {gap:.3g}"
    if np.abs(x - ratio * y).max() / np.abs(y).max() < 6 * c.tol and abs(ratio - 1) > 2 * c.tol:
        words = f"by a factor of {ratio:.5g}"
    elif gap < 0.03 * np.abs(y).max():
        kind, words = LESS_EXACT, f"less exact than its formats, by {gap:.3g}"
    rows, keys = off.any(-1), None
    if name != "dQ":
        keys = rows.any((0, 1))
        heads = np.repeat(rows.any(-1), c.group, 1)
        rows = np.broadcast_to(heads[..., None], c.q.shape[:3])
    return defect(kind, f"{name} is {words}", f"{', '.join(bad)} against float64", rows, keys)


def _float64(c: Case, do: np.ndarray):
    """Return dQ, dK, dV in float64, each with the sums of its terms' magnitudes."""
    if c.model.variant.soft_cap or c.model.top_left:
        raise Refused("gradients with a soft cap or a top-left mask are not judged")
    k, v = c.of_heads(c.k), c.of_heads(c.v)
    p, _ = c.weights(c.scores(c.q, c.k))
    dp = do @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c.model.scale
    size = p * (np.abs(do) @ np.abs(v).swapaxes(-1, -2)) * c.model.scale * 2

    def of_keys(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        sums = x.swapaxes(-1, -2) @ y
        return sums.reshape(c.s.batch, c.s.kv_heads, c.group, *sums.shape[2:]).sum(2)

    dq = ds @ k, size @ np.abs(k)
    dk = of_keys(ds, c.q), of_keys(size, np.abs(c.q))
    return dq, dk, (of_keys(p, do), of_keys(p, np.abs(do)))
