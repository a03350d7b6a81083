"""The bench draws its figures from tables alone, in the right units."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from labkernels.plots import bench
from labkernels.plots.bench.budget import FAMILIES
from tests.plots.conftest import draw

REGISTERS, SMEM = "registers per thread", "shared memory per block, bytes"


def budget_rows():
    columns = ["kernel", "resource", "kind", "term", "value", "counts"]
    rows = [
        ("a", REGISTERS, "predicted", "O", 64, True),
        ("a", REGISTERS, "predicted", "K or V", 8, True),
        ("a", REGISTERS, "predicted", "shared", 8, False),
        ("a", REGISTERS, "compiled", "compiled", 90, False),
        ("a", SMEM, "predicted", "stages", 2048, True),
        ("a", SMEM, "compiled", "compiled", 2048, False),
    ]
    return pd.DataFrame(rows, columns=columns)


def test_budget_stacks_what_counts_and_marks_the_compilers_number():
    figure = draw(bench.budget(budget_rows(), origin="here"))
    registers, smem = figure.axes
    widths = {patch.get_facecolor(): patch.get_width() for patch in registers.patches}
    assert widths[to_rgba(FAMILIES["O, dK, dV, dQ"][1])] == 64
    assert widths[to_rgba(FAMILIES["K and V"][1])] == 8
    assert list(registers.lines[0].get_xdata()) == [90]
    assert [*registers.lines[-1].get_xdata()] == [255, 255]
    assert list(smem.lines[0].get_xdata()) == [2]  # KiB
    assert "KiB" in smem.get_xlabel()


def test_timing_leaves_simulations_out_and_draws_the_floors():
    columns = ["operation", "kernel", "tensor_cores", "kind", "time_ms", "origin"]
    rows = [
        ("decode", "decode_mma", "on", "live", 0.5, "here"),
        ("decode", "decode_mma", "on", "recorded", 0.4, "there"),
        ("decode", "decode_fma", "off", "simulation, not performance", 9.0, "CPU"),
    ]
    floors = pd.DataFrame(
        {
            "operation": "decode",
            "workload": "w",
            "tensor_cores": ["on", "off"],
            "least_ms": [0.3, 0.6],
        }
    )
    figure = draw(bench.timing(pd.DataFrame(rows, columns=columns), floors))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["decode_mma"]
    assert [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2] == [0.3, 0.6]


def error_figure(*kinds, shape=(2, 4), elements=50):
    """Return the figure of errors of kinds (kernel, switch, size, tensor, note)."""
    rng, frames = np.random.default_rng(0), []
    sample, head, _ = (x.ravel() for x in np.indices((*shape, elements)))
    for kernel, way, size, tensor, note in kinds:
        error = size * rng.standard_normal(sample.size)
        columns = {"sample": sample, "head": head, "error": error, "ratio": np.abs(error) / 1e-3}
        named = {"kernel": kernel, "tensor_cores": way, "tensor": tensor, "note": note}
        frames.append(pd.DataFrame(columns).assign(**named))
    every = pd.concat(frames)
    keys = ["kernel", "tensor_cores", "tensor", "sample", "head"]
    cells = every.assign(rmse=every.error**2).groupby(keys, sort=False).rmse.mean() ** 0.5
    return draw(bench.errors(cells.reset_index(), every, origin="here"))


def test_errors_have_a_map_for_each_kernel_but_the_exact_one():
    """What an interpreter does not round is not pooled with what tensor cores round."""
    figure = error_figure(
        ("exact", "off", 0.0, "out", ""),
        ("decode_fma", "off", 1e-5, "out", ""),
        ("decode_mma", "on", 2e-5, "out", ""),
        ("triton_decode", "on", 2e-5, "out", "P not rounded"),
    )
    titles = {axes.get_title(loc="left") for axes in figure.findobj(Axes)}
    assert len([title for title in titles if "decode" in title or "Triton" in title]) == 3
    legends = [axes.get_legend() for axes in figure.findobj(Axes) if axes.get_legend()]
    named = {text.get_text() for legend in legends for text in legend.get_texts()}
    assert {"tensor cores on", "on, interpreted"} <= named


def test_titles_of_gradients_do_not_overlap():
    ordered = ("backward_wgmma ordered", "on", 1e-5)
    figure = error_figure(*((*ordered, name, "") for name in ("dq", "dk", "dv")), elements=20)
    sides = [(a.title, a._left_title, a._right_title) for a in figure.findobj(Axes)]
    texts = [t for side in sides for t in side if t.get_text() and t.get_visible()]
    boxes = [t.get_window_extent() for t in texts]
    assert len(boxes) == 3
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
