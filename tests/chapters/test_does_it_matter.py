"""Does it matter: verdicts on real inputs and tables of the recorded effects."""

import numpy as np
import pandas as pd
import pytest
import torch

from labkernels.chapters import does_it_matter as chapter
from labkernels.experiments.training import effects, losses
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.records import store


def test_how_many_keys_share_a_weight():
    drawn = prefill_inputs(Prefill((2,), (4,), 2, 1, 16, causal=True), Normal(0, "cpu"))
    drawn.q.zero_()
    assert np.allclose(chapter.keys_that_share(drawn), 3.5)  # three keys, and four
    drawn.q[:, 1], drawn.kv.k[:, 0] = 1, 0
    drawn.kv.k[1] = 900
    assert np.allclose(chapter.keys_that_share(drawn), [3.5, 1])


def test_tables_of_the_recorded():
    every = pd.DataFrame(store.read("effects"))
    found = every[every.model == effects.PLAIN]
    full = chapter.means(found, "logits")
    assert full.loc["rounded inputs", "RMSE of logits"] == 0
    assert (full.drop("rounded inputs")["RMSE of logits"] > 0).all()
    assert chapter.losses(losses.PLAIN).shape == (11, 3)
    for what in (losses.HELD_OUT, losses.EXACT):
        assert chapter.losses(losses.WIDE, what).shape == (6, 3)
    lines = chapter.curve(losses.PLAIN, {"tensor cores": "on", "torch fp32": "fp32"})
    assert set(lines.kind) == {f"{way}, seed {n}" for way in ("on", "fp32") for n in losses.SEEDS}
    every = chapter.curve(losses.PLAIN, {way: way for way in chapter.losses(losses.PLAIN).index})
    assert np.allclose(every.groupby(["model_seed", "x"]).y.mean(), 0, rtol=0, atol=1e-12)


def test_a_batch_invariant_decode_has_one_ratio_alone_and_in_a_batch_of_64():
    every = pd.DataFrame(store.read("effects"))
    one, alone = (
        every[every.way == way].pivot(
            index=["model", "what", "metric", "sample"], columns=[], values="value"
        )
        for way in ("batch invariant", "batch invariant, alone")
    )
    assert set(one.groupby(level="metric").size()) == {2 * 64}  # texts of both models
    assert one.equals(alone)
    ratios = chapter.ratios(every[every.model == effects.WINDOWED])
    assert (ratios["largest, %"] >= ratios["mean distance from 1, %"]).all()
    assert set(ratios["trains with"]) == {"decode", "full pass"}
    texts = every[(every.metric == "log ratio of the text") & (every.way == "P as hi + lo")]
    want = 100 * np.expm1(np.sqrt((texts[texts.model == effects.WINDOWED].value ** 2).mean()))
    found = ratios[ratios.attention == "P as hi + lo"]["of a text, %"].item()
    assert found == pytest.approx(want)


@pytest.mark.parametrize("kernel", ["decode_fma", "decode_mma", "prefill_mma"])
def test_right_outputs_on_real_inputs_are_rounding(kernel):
    assert chapter.answers(kernel.partition("_")[0], kernel) == ["ROUNDING"] * 10


def test_the_first_byte_that_differs_is_marked():
    assert chapter.marked(torch.tensor(list(b"ab\n\x00d")), 2) == "ab\u25b6\n·d"
