import pandas as pd
import pytest

from labkernels import plots
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


def test_ceilings_are_no_kernels(times):
    assert "copy" not in set(times.kernel)


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


def test_sweeps_share_the_time_axis(times):
    fp16 = times.query("dtype == 'fp16'")
    groups, pages = fp16.query("page_size == 16"), fp16.query("group == 4")
    figure = draw(plots.group_and_page(groups, pages, origin=ORIGIN))
    left, right = figure.axes
    assert left.get_ylim() == right.get_ylim()
    assert (left.get_xlabel(), right.get_xlabel()) == ("query heads per KV head", "keys per page")
    assert "ms" in left.get_ylabel()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 1 + len(KERNELS)


def test_rates_have_a_panel_each_a_line_each_and_dashes_where_asked():
    rates = pd.DataFrame(
        {
            "panel": ["a", "a", "b", "b"],
            "series": ["ours", "ordered", "ours", "ordered"],
            "kernel": ["backward_wgmma"] * 4,
            "dashed": [False, True] * 2,
            "tokens": [2048] * 4,
            "rate": [4e14, 3e14, 5e14, 2e14],
        }
    )
    figure = plots.rates_by_length(rates, origin="measured nowhere")
    first, second = figure.axes[:2]
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["a", "b"]
    assert [line.get_linestyle() for line in first.lines] == ["-", "--"]
    assert [float(line.get_ydata()[0]) for line in second.lines] == [500, 200]
