import numpy as np
import pandas as pd
import pytest

from labkernels import plots
from tests.plots.conftest import ORIGIN, draw

SHARES = {"scores": 1e-3, "exp2": 0.0, "p": 0.499, "accumulation": 0.1, "store": 0.4}


def budget_rows(by="head", groups=3, **columns):
    """Return rows as MeasuredBudget.rows gives them, measured a tenth above predicted."""
    rows = []
    for source, share in {"total": 1.0, **SHARES}.items():
        bias = -2e-6 if source == "total" else 0.0
        row = {"source": source, "predicted_variance": 1e-12 * share, "predicted_share": share}
        row |= {"measured_variance": 1.1e-12 * share, "measured_share": 1.1 * share}
        row |= {"predicted_bias": bias, "measured_bias": 1.05 * bias, "bias_noise": 1e-8}
        rows += [row | {by: group} | columns for group in range(groups)]
    return pd.DataFrame(rows)


def test_shares_have_the_bias_squared_and_a_sum():
    shares = plots.budget_shares(budget_rows())
    assert "exp2" not in shares.index
    assert shares.predicted_share["bias"] == pytest.approx(4.0)
    assert shares.measured_share["bias"] == pytest.approx(4 * 1.05**2)
    assert shares.predicted_share["total"] == pytest.approx(5.0)
    assert shares.measured_share["total"] == pytest.approx(1.1 + 4 * 1.05**2)


def test_a_bias_that_is_only_noise_is_none():
    rows = budget_rows()
    rows["measured_bias"] = rows["bias_noise"] = 1e-8
    assert plots.budget_shares(rows).measured_share["bias"] == 0


def test_a_waterfall_steps_from_source_to_source():
    figure = draw(plots.error_waterfall(budget_rows(), origin=ORIGIN))
    steps, sizes = figure.axes
    predicted = steps.patches[: len(SHARES) - 1]
    assert [bar.get_x() for bar in predicted] == pytest.approx([0, 1e-3, 0.5, 0.6])
    assert [bar.get_width() for bar in predicted] == pytest.approx([1e-3, 0.499, 0.1, 0.4])
    names = [label.get_text() for label in steps.get_yticklabels()]
    assert names == ["scores Q Kᵀ", "P to 16 bits", "sum P V", "output", "bias", "all"]
    assert steps.patches[5].get_x() == 0
    assert "share" in steps.get_xlabel()
    assert sizes.get_xscale() == "log"
    assert any(bar.get_hatch() for bar in steps.patches)


def test_groups_are_stacked_predicted_beside_measured():
    samples = budget_rows("sample", 5)
    figure = draw(plots.budget_by_group(budget_rows(), samples, origin=ORIGIN))
    heads, below = figure.axes
    assert heads.get_xlabel() == "query head"
    assert below.get_xlabel() == "request"
    tops = {}
    for bar in below.patches:
        place = round(bar.get_x() + bar.get_width() / 2, 2)
        tops[place] = max(tops.get(place, 0), bar.get_y() + bar.get_height())
    assert len(tops) == 10
    assert tops[-0.2] == pytest.approx(1.0)
    assert tops[0.2] == pytest.approx(1.1)


def test_calibration_shows_a_point_a_head_and_every_sure_bias():
    common = {"other_policy": "", "dtype": "fp16"}
    rows = pd.concat(
        budget_rows(family=family, tensor_cores=on, **common)
        for family in ("normal", "peaky")
        for on in ("on", "off")
    )
    rows.loc[rows.tensor_cores == "off", "bias_noise"] = 1.0
    spreads, biases = draw(plots.calibration(rows, origin=ORIGIN)).axes
    points = np.concatenate(
        [line.get_xdata() for line in spreads.lines if line.get_marker() in "os"]
    )
    assert points == pytest.approx(np.full(12, np.sqrt(1.1)))
    assert [label.get_text() for label in spreads.get_yticklabels()] == ["normal", "peaky"]
    assert sum(line.get_xdata().size for line in biases.lines if line.get_marker() == ".") == 6
    assert biases.get_xscale() == biases.get_yscale() == "log"
