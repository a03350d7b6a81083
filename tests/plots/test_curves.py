"""The small figures of chapters: curves, bars, dots by place, and what a test sees."""

import pandas as pd

from labkernels.plots.accuracy.by_place import by_place
from labkernels.plots.accuracy.seen import seen
from labkernels.plots.curves import bars, curves

ORIGIN = "made up"


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_a_curve_stands_for_each_kind():
    rows = pd.DataFrame({"kind": ["a", "a", "b"], "x": [1, 10, 1], "y": [2.0, 3.0, 4.0]})
    figure = curves(rows, labels=("keys", "time, ms"), log="x", at=(3,), origin=ORIGIN)
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert axes.lines[0].get_ydata().tolist() == [2.0, 3.0]
    assert figure.get_supxlabel() == ORIGIN


def test_a_bar_has_its_words_behind_it():
    rows = pd.DataFrame({"name": ["x", "y"], "value": [1.0, 2.0], "words": ["1 ×", "2 ×"]})
    (axes,) = bars(rows, label="time, ms", origin=ORIGIN).axes
    assert texts(axes) == ["1 ×", "2 ×"]
    assert [bar.get_width() for bar in axes.patches] == [1.0, 2.0]


def test_dots_stand_over_their_head_and_their_request():
    rows = [("decode", kind, s, h, 0.1) for kind in ("on", "off") for s in (0, 1) for h in range(3)]
    cells = pd.DataFrame(rows, columns=["operation", "kind", "sample", "head", "value"])
    by_head, by_request = by_place(cells, label="error", origin=ORIGIN).axes
    assert by_head.get_title(loc="left") == "decode"
    places = by_head.collections[0].get_offsets()[:, 0].round()
    assert sorted(places) == [0, 0, 1, 1, 2, 2]
    assert sorted(by_request.collections[0].get_offsets()[:, 0].round()) == [0, 0, 0, 1, 1, 1]
    assert by_head.get_yscale() == "log"


def test_a_bug_is_seen_where_more_is_off_than_of_the_right_kernel():
    rows = [
        ("decode", bug, "K = 0", "off", out, lse)
        for bug, out, lse in (
            ("", 0.1, 0),
            ("a", 0.1, 0),
            ("b", 0.2, 0),
            ("c", 0.1, 1),
            ("d", 1, 1),
        )
    ]
    columns = ["operation", "bug", "inputs", "tensor_cores", "out", "lse"]
    (axes,) = seen(pd.DataFrame(rows, columns=columns), origin=ORIGIN).axes
    assert texts(axes) == ["–", "out", "LSE", "both"]
