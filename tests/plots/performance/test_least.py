import pandas as pd

from labkernels import plots
from tests.plots.conftest import ORIGIN, draw


def test_a_mark_on_and_a_mark_off_for_each_gpu():
    rows = pd.DataFrame({"gpu": ["A", "B"], "on": [1.0, 0.5], "off": [10.0, 8.0]})
    (axes,) = draw(plots.least_times(rows, origin=ORIGIN)).axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[1.0, 0.5], [10.0, 8.0]]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["A", "B"]
