"""Does it matter: activations as inputs and tables of the recorded effects."""

import numpy as np
import pandas as pd
import pytest
import torch

from labkernels.chapters import does_it_matter as chapter
from labkernels.chapters import live
from labkernels.experiments.training import effects
from labkernels.records import store


@pytest.fixture(scope="module")
def parts():
    return chapter.activations()


def test_activations_are_those_of_a_model(parts):
    layers, tokens, group, channels = parts["q"].shape
    assert parts["k"].shape == parts["v"].shape == (layers, tokens, 1, channels)
    assert group == 3
    assert all(part.isfinite().all() for part in parts.values())
    # a trained model looks at few keys, where random inputs of this size share a third of them
    drawn = chapter.prefill_of(parts, 128)
    q = drawn.q.double().view(layers, 128, group, channels)[:, -1].numpy()
    k = drawn.kv.k.double().view(layers, 128, channels).numpy()
    shared = chapter.keys_that_share(np.einsum("lhd,lkd->lhk", q, k) * drawn.scale)
    assert np.median(shared) < 128 / 6


def test_how_many_keys_share_a_weight():
    scores = np.array([[0.0, 0.0, 0.0, 0.0], [900.0, 0.0, 0.0, 0.0], [1.0, 1.0, -900, -900]])
    assert np.allclose(chapter.keys_that_share(scores), [4, 1, 2])


def test_a_decode_reads_the_keys_of_its_layer(parts):
    lengths = (17, 40)
    decoded = chapter.decode_of(parts, lengths)
    prefilled = chapter.prefill_of(parts, 40)
    rows = live.truth(prefilled).reshape(len(parts["q"]), 40, 3, 64)
    found = live.truth(decoded).reshape(len(parts["q"]), 2, 3, 64)
    for place, length in enumerate(lengths):  # a causal row of a prefill is the decode after it
        assert np.allclose(found[:, place], rows[:, length - 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["decode_fma", "decode_mma"])
def test_right_outputs_on_activations_are_rounding(parts, kernel):
    assert chapter.judged("decode", chapter.decode_of(parts, (64,)), kernel) == "ROUNDING"


def test_tables_of_the_recorded():
    every = pd.DataFrame(store.read("effects"))
    found = every[every.model == effects.PLAIN]
    full = chapter.means(found, "logits")
    assert full.loc["rounded inputs", "RMSE of logits"] == 0
    assert (full.drop("rounded inputs")["RMSE of logits"] > 0).all()
    assert chapter.losses().shape == (9, 3)
    lines = chapter.curve(0, ["tensor cores", "torch fp32"])
    assert set(lines.kind) == {"tensor cores", "torch fp32"}
    every = chapter.curve(0, list(chapter.losses().index))
    assert np.allclose(every.groupby("x").y.mean(), 0, rtol=0, atol=1e-12)


def test_a_batch_invariant_decode_has_one_ratio_alone_and_in_a_batch_of_64():
    every = pd.DataFrame(store.read("effects"))
    one, alone = (
        every[every.way == way].pivot(
            index=["model", "what", "metric", "sample"], columns=[], values="value"
        )
        for way in ("batch invariant", "batch invariant, alone")
    )
    assert len(one) == 2 * 5 * 64
    assert one.equals(alone)
    ratios = chapter.ratios(every[every.model == effects.WINDOWED])
    assert (ratios["largest, %"] >= ratios["mean distance from 1, %"]).all()
    assert set(ratios["trains with"]) == {"decode", "full pass"}


def test_each_layer_and_length_is_judged_alone(parts):
    few = {name: part[:2] for name, part in parts.items()}
    assert chapter.answers(few, "decode", "decode_mma") == ["ROUNDING"] * 8


def test_the_first_byte_that_differs_is_marked():
    assert chapter.marked(torch.tensor(list(b"ab\n\x00d")), 2) == "ab\u25b6\n·d"
