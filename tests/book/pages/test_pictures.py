"""The pictures of the pages show what they are given."""

import matplotlib.pyplot as plt
import pandas as pd
import pictures
import pytest


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_a_map_has_an_arrow_for_each_need():
    chapters = [("a", "A", "Primers", "1"), ("b", "B", "Cases", "2"), ("c", "C", "Cases", "3")]
    needs = pd.DataFrame([("b", "a"), ("c", "b")], columns=["name", "needed"])
    columns = ["name", "title", "part", "words"]
    axes = pictures.chapter_map(pd.DataFrame(chapters, columns=columns), needs).axes[0]
    heights = {t.get_text(): t.get_position()[1] for t in axes.texts}
    assert heights["A"] < heights["B"] < heights["C"]
    assert (
        sum(hasattr(text, "arrow_patch") and text.arrow_patch is not None for text in axes.texts)
        == 2
    )


def test_one_look_names_both_machines():
    (axes,) = pictures.one_look().axes
    written = {text.get_text() for text in axes.texts}
    assert {"CPU machine", "GPU", "prediction", "measurement"} <= written
