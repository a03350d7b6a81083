"""The kernel of the assignment that asks which one of its phases was changed."""

import numpy as np

from labkernels.chapters.exercises.overlay import folder_with
from labkernels.chapters.primers.small_attention import HEADER, Request, attend

_PHASE = "mask"
_LINES = "LAB_DEVICE float masked(float s, int key, int end) { return key < end ? s : 0.f; }"
_REQUEST = Request("planted", kv_len=75, n_queries=1, group=4, page_size=75, seed=5)


def planted_bug() -> tuple[np.ndarray, ...]:
    """Return q, k, v, out and lse2 in float32, of a kernel in which one phase was changed.

    Shapes: q, out [1, 4, 32]; k, v [1, 1, 75, 32]; lse2 [1, 4].
    """
    inputs = _REQUEST.draw()
    k, v = (inputs[name][inputs["page_table"]] for name in ("k_pool", "v_pool"))
    out, lse2 = attend(_REQUEST, (folder_with(HEADER, _PHASE, _LINES),))
    return inputs["q"], k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3), out, lse2
