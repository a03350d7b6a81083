"""MLA's larger product, q_nope and the latent, which is K and V at once.

Isolates: the readings have q_nope = 0, so that the latent may be one-hot; here q_nope is random,
and then one block of its channels. Calls: 1, and 8 where that is wrong. Read: blocks that fail.
"""

import numpy as np

from labkernels.defects import SCORES
from labkernels.probing.case import Case
from labkernels.probing.experiments.inputs import Compared, against
from labkernels.probing.report import Defect, Fact, defect

BLOCKS = 8


def nope(c: Case) -> tuple[list[Fact], Defect | None]:
    """Return the fact, and a defect if scores with q_nope are wrong."""
    x = c.rounded(0.5 * c.rng.standard_normal((*c.q.shape[:3], c.s.dim_v)))
    found, width = _with(c, x), c.s.dim_v // BLOCKS
    if not found.rows.any():
        return [Fact("product with the latent", "as asked", "random q_nope", 1)], None
    channels = np.zeros(c.s.dim_v, bool)
    for block in range(0, c.s.dim_v, width):
        part = np.zeros_like(x)
        part[..., block : block + width] = 4 * x[..., block : block + width]
        channels[block : block + width] = _with(c, c.rounded(part)).rows.any()
    fact = Fact("product with the latent", "wrong", "random q_nope, then blocks", 1 + BLOCKS)
    sentence = "the product of q_nope and the latent is another"
    return [fact], defect(SCORES, sentence, fact.evidence, found.rows, channels=channels)


def _with(c: Case, x: np.ndarray) -> Compared:
    p, lse = c.weights(c.scores(c.q, c.k, x @ c.of_heads(c.v).swapaxes(-1, -2)))
    v = c.of_heads(c.v)
    return against(c, "q_nope", c.q, c.k, c.v, nope=x, want=(p @ v, p @ np.abs(v), lse))
