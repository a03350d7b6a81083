"""A page runs each kernel of the primers, and knows what is right."""

import base64
import json

import node
import numpy as np
import pytest

from labkernels.chapters.primers import pipeline
from labkernels.widgets import small

ATTEND, SUM_UP, _, PRODUCT, _ = small.OFFERED


def right(of):
    return np.frombuffer(base64.b64decode(of.plan()["right"]), np.float32)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("of", small.OFFERED, ids=lambda of: of.kernel.name)
def test_unchanged_kernel_is_right_in_a_page(of, needs_node, needs_zig):
    (found,) = node.run_recorded({of.asset_name: json.dumps(of.asset())}).values()
    assert found["error"] is None
    assert all(head["inside"] for head in found["heads"])
    rounds = of is ATTEND
    assert len(found["heads"]) == (4 if rounds else 1)
    assert all((head["error"] > 0) == (head["bound"] > 0) == rounds for head in found["heads"])


def test_what_is_right_is_what_numpy_computes():
    assert (right(PRODUCT) == (small._A @ small._B).ravel()).all()
    assert (right(SUM_UP) == pipeline.tiles(5).reshape(-1, pipeline.THREADS).sum(axis=0)).all()
