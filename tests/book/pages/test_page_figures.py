"""A figure's versions reach the built page, but are in no committed notebook."""

import hashlib

import nbformat
import page_figures
import pytest

WORDS = '<text style="font: bold 10px sans-serif">a</text>'
SVG = f'<svg viewBox="0 0 360 240">\n{WORDS}</svg>\n'
NARROW = "<svg>narrow</svg>"
NAME = hashlib.sha256(SVG.strip().encode()).hexdigest()  # as MyST-NB names it
SERIES = [{"name": "mma", "values": [["1", "2"]], "places": [[1, 2], [3, 4]]}]


def notebook(series=SERIES, png="iVBORw0=", pixels=None):
    versions = {"narrow": NARROW, "series": series, "pixels": pixels}
    data = {"image/png": png, "image/svg+xml": SVG, page_figures.MIME: versions}
    output = nbformat.v4.new_output("display_data", data)
    words = {"figure": {"name": page_figures.STILLS["bits"]}, "image": {"alt": 'a "b"'}}
    cell = nbformat.v4.new_code_cell("", outputs=[output], metadata={"mystnb": words})
    return nbformat.v4.new_notebook(cells=[cell])


@pytest.fixture
def built(tmp_path):
    def build(made):
        for folder in ("_images", "_static/lab", "book", "notebooks", "executed"):
            (tmp_path / folder).mkdir(parents=True)
        nbformat.write(made, tmp_path / "executed/idea.ipynb")
        image = f'<img alt="a" src="../_images/{NAME}.svg" style="width: 100%;" />'
        (tmp_path / "notebooks/idea.html").write_text(f"<figure>{image}</figure>")
        (tmp_path / "_static/look.narrow.svg").write_text(NARROW)
        look, other = (f'<img src="../_images/{name}.svg">' for name in ("look", "map"))
        widgets = "".join(
            f'<div class="lab-widget" data-lab-widget="{name}" data-kernel=""><p>b</p></div>'
            for name in ("bits", "guess")
        )
        (tmp_path / "book/a.html").write_text(look + other + widgets)
        page_figures.add_to(tmp_path, tmp_path / "executed")
        return tmp_path

    return build


def test_a_page_has_the_version_for_phones_and_the_values(built):
    pages = built(notebook())
    text = (pages / "notebooks/idea.html").read_text()
    assert (pages / f"_images/{NAME}.narrow.svg").read_text() == NARROW
    assert f'srcset="../_images/{NAME}.narrow.svg"' in text
    assert f'data-values="figure.{NAME[:16]}"' in text
    script = (pages / f"_static/lab/figure.{NAME[:16]}.js").read_text()
    assert '"values":[["1","2"]]' in script


def test_a_figure_says_its_shape_and_the_width_at_which_its_words_can_be_read(built):
    text = (built(notebook()) / "notebooks/idea.html").read_text()
    assert '<picture style="--lab-ratio: 1.500; --lab-least: 288px">' in text


def test_a_dense_figure_keeps_its_width(built):
    pages = built(notebook(pixels=900))
    assert (
        '<picture class="lab-dense" style="--lab-ratio: 1.500; --lab-least: 900px"><img '
        in (pages / "notebooks/idea.html").read_text()
    )
    assert not (pages / f"_images/{NAME}.narrow.svg").exists()


def test_other_pages_have_versions_and_figures_where_no_script_runs(built):
    text = (built(notebook(series=[])) / "book/a.html").read_text()
    image = f'<img src="../_images/{NAME}.svg" alt="a &quot;b&quot;">'
    assert f'data-kernel=""><noscript><figure>{image}<figcaption>' in text
    assert text.count("<noscript>") == text.count("</noscript><p>b</p></div>") == 1
    assert text.startswith(
        '<picture><source media="(max-width: 576px)" srcset="../_static/look.narrow.svg">'
        '<img src="../_images/look.svg"></picture><img src="../_images/map.svg">'
    )


def test_a_committed_notebook_has_the_picture_alone():
    made = notebook()
    page_figures.without_versions(made)
    assert set(made.cells[0].outputs[0].data) == {"image/png"}


def test_a_figure_that_has_no_versions_is_refused():
    made = notebook()
    page_figures.require_all(made)
    del made.cells[0].outputs[0].data[page_figures.MIME]
    error = nbformat.v4.new_output("error", ename="E", evalue="e", traceback=["no narrow one"])
    made.cells[0].outputs.append(error)
    with pytest.raises(ValueError, match="no narrow one"):
        page_figures.require_all(made)
