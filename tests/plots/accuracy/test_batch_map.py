"""The map of batches says in words and shades what changed."""

import pandas as pd
from matplotlib.colors import to_rgb

from labkernels import plots

CELLS = pd.DataFrame(
    [
        ("a", 512, 2, 0, 0), ("a", 512, 4, 32, 0), ("b", 512, 2, 5, 0), ("b", 512, 4, 32, 1),
        ("a", 64, 2, 0, 0), ("b", 64, 4, 7, 0),
    ],
    columns=["way", "kv_len", "batch", "heads_differ", "heads_unstable"],
).assign(q_heads=32)  # fmt: skip


def test_the_words_of_each_cell():
    figure = plots.batch_map(CELLS, origin="here")
    left, right = figure.axes
    assert [text.get_text() for text in left.texts] == ["=", "", "5", "!"]
    assert [text.get_text() for text in right.texts] == ["=", "", "", "7"]
    figure.draw_without_rendering()
    light, dark = (sum(to_rgb(left.collections[0].get_facecolors()[i][:3])) for i in (0, 1))
    assert dark < light
    assert figure.get_supxlabel() == "here"
