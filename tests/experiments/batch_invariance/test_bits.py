"""Tests of the experiment with bits that change with the batch, without a GPU."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from labkernels.experiments.batch_invariance import bits as recorded
from labkernels.experiments.batch_invariance import ways
from labkernels.planners import Batch, Cut
from labkernels.planners.cut import even
from labkernels.planners.prediction import changed_heads
from labkernels.records import schema

SHAPE = recorded.Shape(1, 600, 8, 2, 64, (2,))
KEYS = (128, 640)  # per split: alone, and in a batch


def depends_on_the_batch(t, **options):
    """A decode of ours that is cut by its batch."""
    return ways._decode(t, keys_per_split=KEYS[len(t.q) > 1], **options)


class Now:
    """Computes in this process what a recording's pool would."""

    @staticmethod
    def submit(work, *arguments):
        return SimpleNamespace(result=lambda: work(*arguments))


@pytest.mark.parametrize("kernel", ["decode_mma", "decode_fma"])
def test_emulated_bits_predict_every_head_of_ours(kernel):
    given = recorded.draw(SHAPE, seed=1, device="cpu")
    way = ways._ours("ours", partial(depends_on_the_batch, kernel=kernel))
    (item,) = recorded.seen(way, given, SHAPE)
    predicted = recorded.Prediction(given, Now, [item])
    heads, method = predicted.heads(item)
    assert method == "emulated bits"
    assert (heads == item.differs).all()
    assert heads.any()
    assert not item.unstable.any()
    row = recorded.base_row(item, SHAPE) | predicted.row(item)
    assert row["heads_right"] == SHAPE.q_heads
    assert row["cut_alone"].endswith("5 splits of 128")
    assert set(row) <= set(schema.TABLES["batch_bits"].columns)
    if kernel == "decode_mma":  # P in bf16: the running maximum tells as much
        scores = changed_heads(*predicted._scores, item.alone, item.cut, dtype="bf16")
        assert (scores.reshape(-1) == item.differs).mean() >= 7 / 8


def test_a_way_with_one_plan_changes_nothing_and_a_closed_one_has_no_prediction():
    given = recorded.draw(SHAPE, seed=0, device="cpu")
    found = {way.name: way for way in ways.ways("decode")}
    (item,) = recorded.seen(found["labkernels, keys_per_split"], given, SHAPE)
    prediction = recorded.Prediction(given, Now, [item])
    assert (item.differs.sum(), item.ulps, prediction.row(item)["method"]) == (0, 0, "same cut")
    (item,) = recorded.seen(found["torch math"], given, SHAPE)
    assert set(prediction.row(item)) == {"plan_blocks", "note"}
    assert "cuBLAS" in prediction.row(item)["note"]


def test_differences_are_counted_per_head_and_in_steps_across_zero():
    a = torch.ones(2, 3, 4, dtype=torch.bfloat16)
    b = a.clone()
    b[1, 2, 0] = 1.0 + 3 * 2.0**-7
    differs, steps = recorded.compare(a, b)
    assert (differs.tolist(), steps) == ([False, False, True], 3)
    small = torch.tensor([2.0**-133, -(2.0**-133)], dtype=torch.bfloat16).reshape(2, 1, 1, 1)
    assert recorded.compare(*small)[1] == 2
    nan = a.clone()
    nan[0, 0] = float("nan")
    assert recorded.compare(a, nan)[0].tolist() == [True, False, False]


def test_a_plan_of_flashinfer_is_held_against_the_cut():
    batch = Batch((512,) * 4, 8, 2, 128, page_size=16)
    cut = Cut("FlashInfer fa2", 16, 128, (even(512, 128),) * 4)
    prefill = [16, 4, 0, 16, *[0] * 9, 0, 1]
    assert ways.agrees(prefill, batch, cut)
    assert ways.agrees([16, *[0] * 7, 0, 1], batch, cut)
    for index, value in ((0, 8), (3, 64), (14, 0)):
        other = prefill.copy()
        other[index] = value
        assert ways.agrees(other, batch, cut) is False
    assert ways.agrees([16, *[0] * 7, 1, 1], batch, cut) is None  # a graph's plan counts padding
    assert ways.agrees([], batch, cut) is None


def test_large_batches_are_left_out():
    long = recorded.Shape(1, 8192)
    assert recorded.batches(long, 1)[-1] == 256
    assert recorded.batches(long, 4)[-1] == 64
    assert np.prod([len(recorded.batches(shape, 4)) for shape in recorded.SHAPES]) > 0
