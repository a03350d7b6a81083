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


def test_occupancy_draws_the_blocks_that_fit_and_says_what_one_more_would_take():
    row = {"gpu": "h200", "kernel": "a", "limit": "registers", "blocks_per_sm": 3, "warps": 12}
    row |= {"one_more": "160 registers"}
    lacking = {"gpu": "h200", "kernel": "b"}
    figure = draw(bench.occupancy(pd.DataFrame([row, lacking]), origin="here"))
    (axes,) = figure.axes
    assert [patch.get_width() for patch in axes.patches] == [3]
    assert [text.get_text() for text in axes.texts] == ["3 × 4 warps\n+1 at 160 registers"]


def test_errors_have_a_map_for_each_kernel_but_the_exact_one():
    rng = np.random.default_rng(0)
    sample, head, _ = (x.ravel() for x in np.indices((2, 3, 50)))
    frames = []
    for kernel, way, size in (
        ("exact", "off", 0.0),
        ("decode_fma", "off", 1e-5),
        ("decode_mma", "on", 2e-5),
    ):
        error = size * rng.standard_normal(sample.size)
        columns = {"sample": sample, "head": head, "error": error, "ratio": np.abs(error) / 1e-3}
        frames.append(
            pd.DataFrame(columns).assign(kernel=kernel, tensor_cores=way, tensor="out", note="")
        )
    elements = pd.concat(frames)
    keys = ["kernel", "tensor_cores", "tensor", "sample", "head"]
    cells = elements.assign(rmse=elements.error**2).groupby(keys, sort=False).rmse.mean() ** 0.5
    figure = draw(bench.errors(cells.reset_index(), elements, origin="here"))
    titles = [axes.get_title(loc="left") for axes in figure.findobj(Axes)]
    assert sum("decode" in title for title in titles) == 2


def test_titles_of_gradients_do_not_overlap():
    rng = np.random.default_rng(0)
    sample, head, _ = (x.ravel() for x in np.indices((2, 4, 20)))
    error = 1e-5 * rng.standard_normal(sample.size)
    columns = {"sample": sample, "head": head, "error": error, "ratio": np.abs(error) / 1e-3}
    named = {"kernel": "backward_wgmma ordered", "tensor_cores": "on"}
    frames = [
        pd.DataFrame(columns).assign(**named, tensor=name, note="") for name in ("dq", "dk", "dv")
    ]
    elements = pd.concat(frames)
    keys = ["kernel", "tensor_cores", "tensor", "sample", "head"]
    cells = elements.assign(rmse=elements.error**2).groupby(keys, sort=False).rmse.mean() ** 0.5
    figure = draw(bench.errors(cells.reset_index(), elements, origin="here"))
    texts = [
        t
        for axes in figure.findobj(Axes)
        for t in (axes.title, axes._left_title, axes._right_title)
    ]
    boxes = [t.get_window_extent() for t in texts if t.get_text() and t.get_visible()]
    assert len(boxes) == 3
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_maps_of_errors_number_heads_and_requests_where_they_end():
    """Numbers stand below the lowest map of each column, and left of the first map of each row."""
    kernels = [("decode_fma", "off"), ("decode_mma", "on"), ("decode_mma_n8", "on")]
    rng, parts = np.random.default_rng(0), []
    for kernel, way in kernels:
        part = pd.DataFrame([(s, h) for s in range(2) for h in range(16)] * 3)
        part.columns = ["sample", "head"]
        part = part.assign(kernel=kernel, tensor_cores=way, tensor="out", note="")
        size = np.abs(rng.normal(size=len(part))) + 0.1
        parts.append(part.assign(note="", error=1e-4 * size, ratio=0.1 * size, rmse=1e-4 * size))
    elements = pd.concat(parts)
    keys = ["kernel", "tensor_cores", "tensor", "sample", "head"]
    cells = elements.groupby(keys, sort=False).rmse.mean().reset_index()
    figure = draw(bench.errors(cells, elements, origin="here"))
    maps = [axes for axes in figure.findobj(Axes) if axes.get_title("left")][:3]
    numbers = [[text.get_text() for text in axes.get_xticklabels()] for axes in maps]
    even = [str(head) for head in range(0, 16, 2)]
    assert numbers == [[], even, even]
    assert [[text.get_text() for text in axes.get_yticklabels()] for axes in maps] == [
        ["0", "1"],
        [],
        ["0", "1"],
    ]


def test_maps_of_many_requests_are_no_longer_than_a_screen():
    cells = pd.DataFrame([(s, h) for s in range(57) for h in range(4)], columns=["sample", "head"])
    cells = cells.assign(kernel="decode_mma", tensor_cores="on", tensor="out")
    cells = cells.assign(rmse=1e-4 + 1e-6 * cells["head"])
    figure = draw(bench.errors(cells, cells.assign(error=1e-4, ratio=0.1, note=""), origin="here"))
    assert figure.get_figheight() < 9


def test_what_an_interpreter_does_not_round_is_not_pooled_with_what_tensor_cores_round():
    rng, frames = np.random.default_rng(0), []
    for kernel, way, note in (("decode_mma", "on", ""), ("triton_decode", "on", "P not rounded")):
        part = pd.DataFrame({"sample": 0, "head": np.arange(4).repeat(50)})
        error = 1e-4 * rng.standard_normal(len(part))
        columns = {"kernel": kernel, "tensor_cores": way, "note": note, "tensor": "out"}
        frames.append(part.assign(error=error, ratio=np.abs(error), **columns))
    elements = pd.concat(frames)
    keys = ["kernel", "tensor_cores", "tensor", "sample", "head"]
    cells = elements.assign(rmse=elements.error**2).groupby(keys, sort=False).rmse.mean() ** 0.5
    figure = draw(bench.errors(cells.reset_index(), elements, origin="here"))
    legends = [axes.get_legend() for axes in figure.findobj(Axes) if axes.get_legend()]
    named = [[text.get_text() for text in legend.get_texts()] for legend in legends]
    assert ["tensor cores on", "on, interpreted"] in named
