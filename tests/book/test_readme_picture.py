"""The README's picture can be drawn again from the data that is here."""

import matplotlib as mpl

mpl.use("Agg")


def test_picture_is_drawn_from_the_data(tmp_path):
    import readme_picture

    path = tmp_path / "readme.png"
    readme_picture.draw(path)
    assert path.read_bytes().startswith(b"\x89PNG")
