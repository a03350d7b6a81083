"""The numbers of a row's softmax, which a kernel may store over channels of the output."""

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_ERROR = 2.0**-18  # share of the largest score: products of some hundred channels err less in fp32


def of_rows(problem: Problem, rows: Array) -> tuple[dict[str, Array], Array]:
    """Return the numbers of some rows by name, and the errors that fp32 makes in them.

    Shapes: rows [R, 2], tokens and heads -> [R], [R].
    """
    m, l = np.zeros(len(rows)), np.zeros(len(rows))
    tokens, heads = rows.T
    request, kv_head = problem.request_of[tokens], heads // problem.group
    for of in np.unique(np.stack([request, kv_head], 1), axis=0).tolist():
        mine = (request == of[0]) & (kv_head == of[1])
        none = np.zeros((int(mine.sum()), 1))
        where = (tokens[mine], heads[mine], none, none, none, "fp32", slice(None))
        sheet = Sheet(problem, of[0], of[1], *where)
        m[mine] = sheet.scores.max(1)
        l[mine] = sheet.weights.sum(1) + np.exp2(sheet.sink[:, 0] - m[mine])
    lse2 = m + np.log2(l)
    found = {
        "the row's log-sum-exp": lse2 / LOG2_E,
        "the row's log-sum-exp in base 2": lse2,
        "the row's largest score": m / LOG2_E,
        "the row's largest score in base 2": m,
        "the row's sum l": l,
        "1 / l of the row": 1 / l,
    }
    return found, _ERROR * np.maximum(np.abs(m), 1.0)
