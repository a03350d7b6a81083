"""MLA's larger product, q_nope and the latent, which is K and V at once.

Isolates: the readings have q_nope = 0, so that the latent may be one-hot; here q_nope is random,
and then one block of its channels. Calls: 1, and 8 where that is wrong. Read: blocks that fail.
"""

import numpy as np

from labkernels.defects import SCORES
from labkernels.probing.case import Case
from labkernels.probing.experiments.inputs import against
from labkernels.probing.report import Fact, Findings, defect

NAME = "product with the latent"
BLOCKS = 8


def nope(c: Case) -> Findings:
    """Return the fact, and a defect if scores with q_nope are wrong."""
    x = c.rounded(0.5 * c.rng.standard_normal((*c.q.shape[:3], c.s.dim_v)))
    rows, width = _wrong(c, x), c.s.dim_v // BLOCKS
    if not rows.any():
        return [Fact(NAME, "as asked", "random q_nope", 1)]
    block = np.arange(c.s.dim_v) // width
    bad = [i for i in range(BLOCKS) if _wrong(c, np.where(block == i, 4 * x, 0)).any()]
    fact = Fact(NAME, "wrong", "random q_nope, then blocks", 1 + BLOCKS)
    sentence = "the product of q_nope and the latent is another"
    return [fact, defect(SCORES, sentence, fact.evidence, rows, channels=np.isin(block, bad))]


def _wrong(c: Case, x: np.ndarray) -> np.ndarray:
    more = x @ c.of_heads(c.v).swapaxes(-1, -2)
    return against(c, "q_nope", c.q, c.k, c.v, nope=x, more=more).rows
