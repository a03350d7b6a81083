"""The README's picture is what the data draw now."""

import matplotlib as mpl
import pytest
import readme_picture
from matplotlib import image
from PIL import Image

mpl.use("Agg")


def test_picture_is_the_one_that_the_data_draw(tmp_path):
    drawn, kept = tmp_path / "readme.png", readme_picture.PICTURE
    readme_picture.draw(drawn)
    programs = [Image.open(path).text["Software"] for path in (drawn, kept)]
    if programs[0] != programs[1]:
        pytest.skip(f"{programs[1]} drew the picture; here is {programs[0]}, of other letters")
    assert (image.imread(drawn) == image.imread(kept)).all(), "run python book/readme_picture.py"
