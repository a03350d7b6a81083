import pickle

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

mpl.use("Agg")

ORIGIN = "measured on NVIDIA H200, 2026-12-01, commit abc1234"


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def draw(figure):
    """Lay a figure out as saving would, to show bad labels, and pickle it as a page does."""
    figure.canvas.draw()
    manager, figure.canvas.manager = figure.canvas.manager, None
    pickle.dumps(figure)
    figure.canvas.manager = manager
    return figure
