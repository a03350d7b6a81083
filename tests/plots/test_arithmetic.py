import numpy as np
import pandas as pd

from labkernels import plots
from tests.plots.conftest import ORIGIN, draw


def test_alignment_cuts_each_term_at_the_last_place_kept():
    terms = pd.DataFrame(
        [("kept", 4, 0), ("cut", 1, -3), ("gone", -3, -5)], columns=["name", "top", "bottom"]
    )
    (axes,) = draw(plots.alignment(terms, last_kept=-1, origin=ORIGIN)).axes
    bars = {}
    for bar in axes.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        bars.setdefault(row, []).append((bar.get_x(), bar.get_x() + bar.get_width()))
    assert bars == {0: [(0, 5)], 1: [(-1, 2), (-3, -1)], 2: [(-5, -2)]}


def test_rejections_draw_zero_apart_and_keep_the_instructions_in_order():
    rows = [(kernel, model, share) for kernel in ("wgmma", "mma")
            for model, share in (("the model", 0.0), ("chunk 8", 0.3))]  # fmt: skip
    shares = pd.DataFrame(rows, columns=["kernel", "model", "share"])
    (axes,) = draw(plots.rejections(shares, origin=ORIGIN)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["wgmma", "mma"]
    none, some = axes.lines[0].get_xdata(), axes.lines[1].get_xdata()
    assert max(none) < 0.3 / 5
    assert list(some) == [0.3, 0.3]


def test_chain_bias_has_marks_and_a_line_for_each_generation():
    errors = pd.DataFrame(
        {"arch": ["sm_80"] * 2 + ["sm_90"] * 2, "k": [64, 128] * 2, "bias": [-1e-6] * 4,
         "predicted": [-2e-6] * 4}
    )  # fmt: skip
    (axes,) = draw(plots.chain_bias(errors, origin=ORIGIN)).axes
    assert len(axes.lines) == 4
    assert list(axes.lines[0].get_ydata()) == [1e-6, 1e-6]


def test_the_exponential_unit_shows_all_segments_and_the_first_four():
    error = np.zeros(1 << 23)
    error[: 1 << 17] = 1.0
    whole, some = draw(plots.exponential_unit(error, origin=ORIGIN)).axes
    assert whole.get_xlim() == (0, 64)
    assert some.get_xlim() == (0, 4)
    assert whole.lines[0].get_ydata().max() == 1
    assert np.mean(some.lines[0].get_ydata()) == 0.25
