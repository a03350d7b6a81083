"""Rows that are no average of values, while all others are right: they come from other memory."""

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import significance
from labkernels.numerics.verdict.diagnosis import places
from labkernels.numerics.verdict.diagnosis.one_row import Match
from labkernels.numerics.verdict.diagnosis.whole_kernel import sheets

_FOREIGN = 0.25  # least share of the wrong rows that lie outside of the values
_UNLIKE = 0.5  # largest cosine of the wrong rows and the right ones
_ROWS = 12  # rows of a KV head that show whether they follow their weights
_FOLLOWS = 1.5  # times what chance explains: more is no chance
_TINY = 1e-300  # in place of a division by 0


def of_output(problem: Problem, out: Array, truth: Array, sigma: Array, bad: Array) -> list[Match]:
    """Return a name for uninitialised or overwritten rows. Shapes: bad [total_q, Hq], bool.

    rms of a match is that of the other rows; was is that of these rows.
    """
    right = ~bad & (problem.n_keys[:, None] > 0)
    if not bad.any() or not right.any():
        return []
    z2 = np.where(sigma > 0, (out - truth) / np.where(sigma > 0, sigma, 1.0), 0.0) ** 2
    left, was = (float(np.sqrt(z2[rows].mean())) for rows in (right, bad))
    products, sizes = (out * truth).sum(-1)[bad], np.sqrt((out**2).sum(-1) * (truth**2).sum(-1))
    alike = float(np.abs(products).sum() / max(sizes[bad].sum(), _TINY))
    outside = float(_outside(problem, out, sigma)[bad].mean())
    if left > significance.RIGHT_RMS or outside < _FOREIGN or alike > _UNLIKE:
        return []
    if _follow_weights(problem, out, truth, sigma, bad):
        return []
    where = f"{places.words(problem, bad)}; {outside:.0%} of them lie beyond all values they see"
    return [Match("rows uninitialised or overwritten, or with a constant added", where, left, was)]


def _follow_weights(problem: Problem, out: Array, truth: Array, sigma: Array, bad: Array) -> bool:
    """Return whether rows are alike where their weights are: they are a function of the inputs.

    Of as many rows as there are, a quarter of the directions of their weights explains a quarter
    of what no block wrote, but most of what was made of other values.
    """
    shares, expected = [], []
    score = np.where(bad, 1.0, 0.0)
    for sheet in sheets.of_rows(problem, out, truth, sigma, score, "fp32"):
        rows = len(sheet.tokens)
        if rows < _ROWS:
            continue
        p = sheet.weights / sheet.weights.sum(1, keepdims=True)
        scale = np.maximum(np.median(np.abs(sheet.out), 0), _TINY)
        given = np.arcsinh(sheet.out / scale)
        p, given = p - p.mean(0), given - given.mean(0)
        few = rows // 4
        ways = np.linalg.svd(p, full_matrices=False)[0][:, :few]
        shares.append(float(((ways.T @ given) ** 2).sum() / max((given**2).sum(), _TINY)))
        expected.append(few / (rows - 1))
    return bool(shares) and float(np.median(shares)) > _FOLLOWS * float(np.median(expected))


def _outside(problem: Problem, out: Array, sigma: Array) -> Array:
    """Return which rows have an element beyond all values that they see. Shapes: [total_q, Hq]."""
    slack, found = significance.OUTLIER * sigma, np.zeros(out.shape[:2], bool)
    for request in range(problem.batch):
        tokens = slice(*(int(end) for end in problem.q_ends[request : request + 2]))
        last = np.maximum(problem.n_keys[tokens] - 1, 0)
        for head in range(problem.kv_heads if last.size else 0):
            v = sheets.keys_of(problem, "v", head, request)
            heads = slice(head * problem.group, (head + 1) * problem.group)
            low, high = (each.accumulate(v)[last, None] for each in (np.minimum, np.maximum))
            given, room = out[tokens, heads], slack[tokens, heads]
            found[tokens, heads] = ((given < low - room) | (given > high + room)).any(-1)
    return found
