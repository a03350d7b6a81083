"""Figures of times, counters, searches and resources show what they are given."""

import pandas as pd
import pytest

from labkernels import plots
from labkernels.hardware import gpu
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.plots.performance.counters import PARTS, STALLS
from tests.plots.conftest import KERNELS, ORIGIN, draw, measurements


@pytest.fixture
def times():
    return plots.graph_times(measurements(page_sizes=(1, 16, 64)))


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_rows_become_one_line_a_kernel_and_workload(times):
    assert len(times) == len(KERNELS) * 3 * 3 * 2
    one = times.query(
        "kernel == 'decode_fma' and group == 4 and page_size == 16 and dtype == 'fp16'"
    ).squeeze()
    assert one.time_ms == pytest.approx(0.44 * 1.4)
    assert one.q25_ms < one.time_ms < one.q75_ms
    assert one.percent == pytest.approx(100 / 1.4)
    assert one.ceiling_ms == pytest.approx(0.44)


def test_case_says_time_percent_and_origin(times):
    case = times.query("group == 4 and page_size == 16")
    figure = draw(plots.case_times(case, origin=ORIGIN))
    (axes,) = figure.axes
    assert axes.get_xlabel() == "time of one decode step, ms"
    assert "  fp16  0.440 ms, 100 %" in texts(figure)
    assert "  fp16  0.616 ms, 71 %" in texts(figure)
    assert figure.get_supxlabel() == ORIGIN
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0] in ("decode_mma", "FlashInfer's fa2")


def counted(kernel="prefill_mma", head_dim=128, functions=(("f", 2e-3), ("g", 1e-3))):
    values = {"tensor_pipe": 62.0, "issue": 36.0, "stall_selected": 1.0, "stall_wait": 2.0}
    base = {"kernel": kernel, "tile": "", "head_dim": head_dim, "kv_len": 4096}
    rows = [
        base | {"note": name, "metric": metric, "value": value}
        for name, time_s in functions
        for metric, value in ({"time": time_s} | values).items()
    ]
    return pd.DataFrame(rows)


def table():
    frames = [counted(), counted("torch_fa2", 64), counted("cublas", 0, (("h", 1e-3),))]
    refused = pd.DataFrame([{"kernel": "x", "metric": "refused", "value": 1.0}])
    return plots.counter_table(pd.concat([*frames, refused]))


def test_a_call_is_its_longest_kernel_and_the_time_of_all():
    found = table().set_index("kernel")
    assert list(found.index) == ["prefill_mma", "torch_fa2", "cublas"]
    assert found.function.tolist() == ["f", "f", "h"]
    assert found.call_s.tolist() == [3e-3, 3e-3, 1e-3]
    assert found.launches.tolist() == [2, 2, 1]


def test_the_grid_writes_every_percentage_and_marks_what_is_missing():
    rows = plots.busy(table())
    rows["panel"] = "head_dim " + rows.head_dim.astype(str)
    figure = draw(plots.busy_parts(rows, origin=ORIGIN))
    assert len(figure.axes) == 3
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts[0] == "62"
    assert texts.count("–") == len(PARTS) - 2


def test_waiting_warps_add_up_to_those_there_are():
    rows = plots.waiting(table().iloc[:1])
    assert list(rows.reason) == list(STALLS)
    assert abs(rows.warps.sum() - 0.36 * 3) < 1e-12
    figure = draw(plots.waiting_warps(rows, origin=ORIGIN))
    assert len(figure.axes[0].patches) == len(STALLS)


def test_table_is_the_same_text_every_time():
    rows = pd.DataFrame({"kernel": ["decode_fma", "decode_mma"], "rmse": [0.12345, None]})
    (text,) = {plots.table(rows, "errors", {"rmse": "{:.2f}"}).to_html() for _ in range(3)}
    for words in ("0.12<", "–", "T_errors"):
        assert words in text
    with pytest.raises(ValueError, match="formats has 'speed', allowed: kernel"):
        plots.table(pd.DataFrame({"kernel": []}), "empty", {"speed": "{:.2f}"})


def test_a_time_at_the_roof_is_a_hundred_percent():
    h200 = gpu("h200")
    rows = []
    for heads in (1, 128):
        work = MlaDecode((4096,) * 64, heads)
        memory_s = work.bytes / h200.measured_copy_bytes_per_s
        math_s = work.flops / h200.measured_bf16_matmul_flops
        cell = {"kernel": "mla_mma", "tensor_cores": "on", "dtype": "bf16", "q_heads": heads}
        cell |= {"q_len": 1, "value": max(memory_s, math_s)}
        cell |= {"bytes": work.bytes, "flops": work.flops}
        rows.append(cell)
    figure = plots.roof_by_heads(pd.DataFrame(rows), h200, origin="made up")
    (line,) = figure.axes[0].lines
    assert line.get_ydata() == pytest.approx([100, 100])


def test_a_curve_a_search_and_the_goal():
    rows = [("d64", "prefill_mma", run, share) for run, share in ((1, 0.9), (2, 0.99), (3, 1.0))]
    frame = pd.DataFrame(rows, columns=["search", "kernel", "run", "share"])
    (axes,) = draw(plots.best_by_runs(frame, goal=0.98, origin=ORIGIN)).axes
    goal, curve = axes.lines
    assert goal.get_ydata()[0] == 98
    assert list(curve.get_ydata()) == [90, 99, 100]


def test_a_mark_for_each_measured_target_at_its_ratio_over_the_promise():
    rows = [
        ("decode", "fp16", 1.1, 1.0),
        ("decode", "bf16", 0.9, 1.0),
        ("prefill", "bf16", None, 1.05),
        ("prefill", "bf16", 2.1, 1.05),
    ]
    scores = pd.DataFrame(rows, columns=["part", "dtype", "ratio", "promised"])
    (axes,) = draw(plots.ratios_by_part(scores, origin=ORIGIN)).axes
    found = sorted(float(x) for dots in axes.collections for x, _ in dots.get_offsets())
    assert found == [0.9, 1.1, 2.0]
