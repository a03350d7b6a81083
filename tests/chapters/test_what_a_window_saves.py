"""What a window saves: steps of tiles, gains of recorded times, and errors of heads."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labkernels import Prefill
from labkernels.chapters import what_a_window_saves as chapter
from labkernels.measure import real_inputs
from labkernels.variant import AttentionVariant

CAUSAL = AttentionVariant(causal=True)


@pytest.mark.parametrize("window", [None, 0, 5, 31, 32, 200])
@pytest.mark.parametrize(("group", "q_rows", "keys"), [(4, 32, 32), (1, 16, 64), (3, 64, 16)])
def test_a_tile_takes_the_steps_that_hold_a_key_of_its_rows(window, group, q_rows, keys):
    variant = replace(CAUSAL, window_left=window)
    work = Prefill((150,), (170,), group, 1, 64, variant=variant)
    found = chapter.steps(work, q_rows, keys)
    tokens = np.arange(150 * group) // group
    for tile, taken in enumerate(found):
        rows = tokens[tile * q_rows : (tile + 1) * q_rows]
        first = variant.begin(rows, 150, 170).min() // keys
        last = (variant.end(rows, 150, 170).max() - 1) // keys
        assert taken == last - first + 1


def rows(times):
    """Return rows of a recording: (variant's label, kernel) -> seconds."""
    base = {"kv_len": 1024, "tensor_cores": "on"}
    found = []
    for (label, kernel), seconds in times.items():
        note = "2 x 1024 on 2 x 1024, 8/2, d128, causal, bf16" + f", {label}" * bool(label)
        of = base | {"kernel": kernel, "note": note}
        of["backend"] = "flash-attn-4" if kernel == "other" else "cuda"
        found.append(of | {"metric": "time", "statistic": "median", "value": seconds})
        found.append(of | {"metric": "error", "statistic": "rmse", "value": 1e-5})
    refused = {"kernel": "c", "note": "a variant with window, allowed: none", "backend": "torch"}
    return [*found, base | refused | {"metric": "refused", "statistic": "exact", "value": 1.0}]


TIMES = {("", "a"): 8e-6, ("", "b"): 9e-6, ("", "other"): 7e-6}
TIMES |= {("window 128", "a"): 4e-6, ("window 128", "b"): 2e-6, ("soft cap 50", "a"): 16e-6}
SHAPE = (8, 2, 128)


def test_a_gain_is_that_of_the_fastest_kernels():
    found = chapter.times(rows(TIMES))
    assert found.window.tolist() == [1024, 1024, 1024, 128, 128, 0]
    assert (found.rmse == 1e-5).all()
    best = chapter.fastest(found)
    ours = best[best.ours].set_index("variant")
    assert ours.kernel.to_dict() == {"window 128": "b", chapter.PLAIN: "a", "soft cap 50": "a"}
    assert ours.gain.to_dict() == pytest.approx(
        {"window 128": 4.0, chapter.PLAIN: 1.0, "soft cap 50": 0.5}
    )


def test_each_column_of_the_chain_takes_one_more_thing_into_account():
    best = chapter.fastest(chapter.times(rows(TIMES)))
    (told,) = chapter.chain(best[best.ours & (best.window > 0)], (128,), SHAPE).to_dict("records")
    assert (told["S / window"], told["measured"]) == (8.0, pytest.approx(4.0))
    assert told["time, µs"] == pytest.approx(2.0)
    mean = np.mean([min(i + 1, 129) for i in range(1024)])
    assert told["keys that rows see"] == pytest.approx(512.5 / mean)
    works = (chapter.prefill(1024, window, SHAPE) for window in (None, 128))
    steps = [chapter.steps(work, 128, 128).sum() for work in works]
    assert told["steps of tiles"] == pytest.approx(steps[0] / steps[1])


def test_the_scores_of_a_tile_are_those_of_its_rows_and_steps():
    # 32 tokens a tile: a step for each of 4 tiles of the first 128 tokens, then two for each
    assert chapter.scores(chapter.prefill(1024, 128, SHAPE)) == (4 + 28 * 2) * 128 * 128


def test_a_decode_takes_the_time_of_its_bytes():
    long, short = (chapter.least_us(chapter.decode(8192, w, SHAPE, 57)) for w in (None, 127))
    rows_bytes = 57 * 8 * (2 * 128 * 2 + 4)  # q, out and the LSE
    kv_bytes = 57 * 2 * 2 * 128 * 2 * 8192
    assert long / short == pytest.approx((kv_bytes + rows_bytes) / (kv_bytes / 64 + rows_bytes))


def test_layers_without_a_window_limit_a_model():
    found = chapter.of_models((8192,)).set_index(["model's shape", "operation"])
    for (model, _), row in found.iterrows():
        windowed = chapter.MODELS[model][2]
        assert row["at most"] == windowed + 1
        gain = row["a layer with a window"]
        assert row["all layers"] == pytest.approx((windowed + 1) / (windowed / gain + 1))
        assert 1 < row["all layers"] < row["at most"]


def test_errors_are_those_of_the_chosen_heads():
    exact = np.ones((3, 2, 4)) * [[[1.0], [2.0]]]
    out = exact + np.array([[0.1], [0.4]])
    found = chapter.beside({"x": out}, exact, {"first": [0], "second": [1]})
    assert found.output.tolist() == pytest.approx([1, 2])
    assert found.relative.tolist() == pytest.approx([0.1, 0.2])


def test_the_score_of_the_first_key_is_that_of_a_sink_in_its_place():
    text = real_inputs.prefill_of((256,), ("first key", "diffuse"), queries=2)
    q, first = text.q.double(), text.kv.k[0].double().repeat_interleave(3, 0)
    wanted = torch.einsum("qhd,hd->qh", q, first).mean(0) / 8
    assert torch.allclose(chapter.score_of_first(text).double(), wanted, atol=1e-4)
