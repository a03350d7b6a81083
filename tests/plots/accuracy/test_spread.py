import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from labkernels import plots
from tests.plots.conftest import ORIGIN, draw


def elements():
    rng, frames = np.random.default_rng(0), []
    for way, size in (("coarse", 1e-3), ("fine", 1e-5)):
        sample, head, _ = (x.ravel() for x in np.indices((2, 3, 60)))
        columns = {"sample": sample, "head": head, "error": size * rng.standard_normal(len(head))}
        frames.append(pd.DataFrame(columns).assign(way=way))
    return pd.concat(frames)


def test_a_box_for_each_way_of_each_head_and_request():
    figure = draw(plots.error_spread(elements(), origin=ORIGIN, log=True))
    by_head, by_request = figure.findobj(Axes)[:2]
    assert [t.get_text() for t in by_head.get_xticklabels()] == ["0", "1", "2"]
    assert [t.get_text() for t in by_request.get_xticklabels()] == ["0", "1"]
    assert by_head.get_yscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["coarse", "fine"]


def test_a_line_of_means_over_heads_for_each_kernel_and_request():
    rows = [
        (kernel, on, heads, sample, head, heads * 1e-5)
        for kernel, on in (("mla_fma", "off"), ("mla_mma", "on"))
        for heads in (2, 4)
        for sample in (0, 1)
        for head in range(heads)
    ]
    columns = ["kernel", "tensor_cores", "q_heads", "sample", "head", "rmse"]
    figure = draw(plots.errors_by_heads(pd.DataFrame(rows, columns=columns), origin=ORIGIN))
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert [list(line.get_ydata()) for line in axes.lines] == [[2e-5, 4e-5]] * 2
