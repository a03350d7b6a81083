import numpy as np
import pandas as pd
import pytest

from labkernels import plots
from tests.plots.conftest import ORIGIN, draw, error_rows


@pytest.mark.parametrize(("samples", "shape"), [(8, (3, 1)), (57, (1, 3))])
def test_maps_share_one_scale(samples, shape):
    figure = draw(
        plots.error_maps(error_rows(samples=samples, heads=32), origin=ORIGIN, label="rmse")
    )
    *maps, bar = figure.axes
    limits = {axes.images[0].get_clim() for axes in maps}
    assert len(limits) == 1
    grid = maps[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == shape
    titles = [axes.get_title(loc="left").replace("\n", ", ") for axes in maps]
    assert titles == ["decode_fma, off", "decode_mma, on", "on minus off"]
    assert bar.get_ylabel() == "rmse"


def test_many_wide_maps_stand_in_two_columns():
    cells = [error_rows(samples=3, heads=8).assign(kernel=f"rung {i}") for i in range(5)]
    cells = pd.concat(cells).query("tensor_cores == 'on'")
    *maps, _ = draw(plots.error_maps(cells, origin=ORIGIN, label="rmse")).axes
    grid = maps[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == (3, 2)
    assert [axes.get_visible() for axes in maps] == [True] * 5 + [False]
    assert [axes.get_title(loc="left") for axes in maps[:2]] == ["rung 0, on", "rung 1, on"]


def test_map_shows_a_cell_where_it_is():
    cells = error_rows(samples=5, heads=4)
    cells.loc[(cells["sample"] == 3) & (cells["head"] == 1), "rmse"] = 1.0
    figure = plots.error_maps(cells, origin=ORIGIN, label="rmse", log=True)
    picture = figure.axes[0].images[0].get_array()
    assert np.unravel_index(np.argmax(picture), picture.shape) == (3, 1)


def test_distributions_mark_the_mean():
    cells = error_rows().query("tensor_cores != ''").assign(ratio=1.25, bias_sigma=-0.5)
    cells["ratio"] += np.linspace(-0.1, 0.1, len(cells))
    cells["bias_sigma"] += np.linspace(-0.1, 0.1, len(cells))
    figure = draw(plots.distributions(cells, origin=ORIGIN))
    size, sign = figure.axes
    assert "measured / predicted" in size.get_xlabel()
    assert "standard errors" in sign.get_xlabel()
    means = [line.get_xdata()[0] for line in size.lines if line.get_marker() in "os"]
    assert np.mean(means) == pytest.approx(1.25)


def test_relative_difference_names_its_maximum():
    elements = pd.DataFrame({"size": [1e-6, 1e-2, 1.0], "difference": [1e-5, 1e-5, 1e-3]})
    ulp = pd.DataFrame({"size": [1e-6, 1.0], "ulp": [6e-8, 1e-3]})
    figure = draw(plots.relative_difference(elements, ulp=ulp, origin=ORIGIN))
    assert [text.get_text().strip() for text in figure.axes[1].texts] == ["the maximum, 10"]
