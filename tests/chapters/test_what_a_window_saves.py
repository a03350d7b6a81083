"""What a window saves: steps of tiles, gains of recorded times, and errors of heads."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from labkernels import Prefill
from labkernels.chapters import what_a_window_saves as chapter
from labkernels.plots.performance.windows import times_by_window
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


def rows(operation, times, **shape):
    """Return rows of a recording: (variant's label, kernel) -> seconds."""
    base = {"experiment": f"{operation}_variants", "batch": 2, "kv_len": 1024, "q_heads": 8}
    base |= {"kv_heads": 2, "head_dim": 128, "tile": "128x128x12", "tensor_cores": "on"} | shape
    found = []
    for (label, kernel), seconds in times.items():
        note = "2 x 1024, 8/2, d128, bf16" + f", {label}" * bool(label)
        of = base | {"kernel": kernel, "note": note}
        of["backend"] = "flashinfer" if kernel == "other" else "cuda"
        found.append(of | {"metric": "time", "statistic": "median", "value": seconds})
        found.append(of | {"metric": "error", "statistic": "rmse", "value": 1e-5})
    return found


TIMES = {("", "a"): 8e-6, ("", "b"): 9e-6, ("", "other"): 7e-6}
TIMES |= {("window 128", "a"): 4e-6, ("window 128", "b"): 2e-6, ("soft cap 50", "a"): 16e-6}


def test_a_gain_is_that_of_the_fastest_kernels():
    found = chapter.times(rows("prefill", TIMES))
    assert found.window.tolist() == [1024, 1024, 1024, 128, 128, 0]
    assert (found.rmse == 1e-5).all()
    best = chapter.fastest(found)
    ours = best[best.ours].set_index("variant")
    assert ours.kernel.to_dict() == {"window 128": "b", chapter.PLAIN: "a", "soft cap 50": "a"}
    assert ours.gain.to_dict() == pytest.approx(
        {"window 128": 4.0, chapter.PLAIN: 1.0, "soft cap 50": 0.5}
    )


@pytest.mark.parametrize("operation", ["prefill", "decode"])
def test_each_column_of_the_chain_takes_one_more_thing_into_account(operation):
    best = chapter.fastest(chapter.times(rows(operation, TIMES)))
    best = best[best.ours & (best.window > 0)]
    (told,) = chapter.chain(best, (128,)).to_dict("records")
    assert (told["S / window"], told["measured"]) == (8.0, pytest.approx(4.0))
    assert told["time, µs"] == pytest.approx(2.0)
    if operation == "decode":
        assert 7.5 < told["work of the kernel"] < 1024 / 129
        return
    mean = np.mean([min(i + 1, 129) for i in range(1024)])
    assert told["keys that rows see"] == pytest.approx(512.5 / mean)
    causal = replace(CAUSAL, window_left=128)
    steps = [chapter.steps(Prefill((1024,), (1024,), 8, 2, 128, variant=v), 128, 128).sum()
             for v in (CAUSAL, causal)]  # fmt: skip
    assert told["work of the kernel"] == pytest.approx(steps[0] / steps[1])


def test_layers_without_a_window_limit_a_model():
    shape = {"q_heads": 16, "head_dim": 256}
    times = {("", "a"): 10e-6, ("window 1024", "a"): 2e-6}
    shape_of_the_other = {"q_heads": 64, "head_dim": 64}
    others = {("", "a"): 10e-6, ("window 128, sinks", "a"): 1e-6}
    recorded = rows("decode", times, **shape) + rows("decode", others, **shape_of_the_other)
    best = chapter.fastest(chapter.times(recorded))
    found = chapter.of_models(best).set_index("model's shape")
    assert found.gain.to_dict() == pytest.approx({"Gemma 3": 5, "GPT-OSS": 10})
    assert found["of all layers"]["Gemma 3"] == pytest.approx(60 / 20)
    assert found["of all layers"]["GPT-OSS"] == pytest.approx(20 / 11)


def test_errors_are_those_of_the_chosen_heads():
    exact = np.ones((3, 2, 4)) * [[[1.0], [2.0]]]
    out = exact + np.array([[0.1], [0.4]])
    found = chapter.beside({"x": out}, exact, {"first": [0], "second": [1]})
    assert found.output.tolist() == pytest.approx([1, 2])
    assert found.relative.tolist() == pytest.approx([0.1, 0.2])


def test_a_figure_has_a_panel_for_each_operation_and_a_curve_for_each_kind():
    lines = [("prefill", "on", False), ("prefill", "off", True), ("decode", "on", False)]
    table = pd.DataFrame(
        [(*line, window, 2.0 * window) for line in lines for window in (1024, 128)],
        columns=["panel", "kind", "dashed", "window", "value"],
    )
    figure = times_by_window(table, label="time, µs", origin="computed")
    left, right = figure.axes
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["prefill", "decode"]
    assert [line.get_linestyle() for line in left.lines] == ["-", "--"]
    assert list(right.lines[0].get_xdata()) == [128, 1024]
    assert [text.get_text() for text in left.get_xticklabels()] == ["128", "1k"]
    assert [text.get_text() for text in figure.legends[0].texts] == ["on", "off"]
