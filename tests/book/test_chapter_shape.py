"""A chapter answers on its first screen, is short, and has figures and tables of its own."""

import base64
import hashlib
import itertools
import re
import struct

import jupytext
import nbformat
import pytest

from labkernels.bench.log import FIGURES
from tests.repo.files import ROOT, chapters

BOX = re.compile(r"^:::\{admonition\} Answer\n:class: important\n\n(.*?)\n:::$", re.M | re.S)
SURE = "How sure: "
ROLE = re.compile(r"\{glue:text\}`\w+`")
# A version, or a number with a unit of what is measured. Shapes and formats have no such unit.
UNIT = r" ?%|[ -](?:percent|times|[µmn]?s|TFLOP/s|TB/s|nats)\b"
TYPED = re.compile(rf"\b\d+\.\d+\.\d+\b|(?<![\w.])\d[\d.,]*(?:{UNIT})")
GIVEN = {  # numbers that nobody measured
    "98 %": "what a search of the tuner must reach of the best tile, by its definition",
    "2 %": "the rest of it",
}
ANSWER_LINES_MAX, QUESTION_SENTENCES_MAX, WORDS_MAX = 5, 2, 3500
ANSWER_LETTERS_MAX = 450  # five lines of a page's column
COLUMN_WIDTH, SCREEN_HEIGHT = 736, 900  # pixels of a page's text in a window of 1300 x 900
SECTIONS = [
    "Question",
    "Prediction",
    "Measurement",
    "What would change the answer",
    "Exercises",
    "Sources",
]


def sources():
    return sorted((ROOT / "notebooks").glob("[!_]*.py"))


CHAPTERS = chapters("Chapters")
each_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def shown(path):
    """Yield each cell and output of the executed notebook of a script."""
    for cell in nbformat.read(path.with_suffix(".ipynb"), as_version=4).cells:
        yield from ((cell, output) for output in cell.get("outputs", ()))


def pictures(path):
    return [
        base64.b64decode(output.data["image/png"])
        for _, output in shown(path)
        if "image/png" in output.get("data", {})
    ]


def tables(path):
    """Return the words of each table, without marks; an output may have several."""
    texts = [output.get("data", {}).get("text/html", "") for _, output in shown(path)]
    found = itertools.chain(*(re.findall(r"<table.*?</table>", t, flags=re.S) for t in texts))
    return [" ".join(re.sub(r"<[^>]+>", " ", table).split()) for table in found]


@each_chapter
def test_the_answer_stands_below_the_question_and_says_how_sure_it_is(path):
    first = jupytext.read(path).cells[0].source
    box = BOX.search(first)
    assert box, "the first cell has no ':::{admonition} Answer' of class important"
    lines = [line for line in box[1].splitlines() if line.strip()]
    assert len(lines) <= ANSWER_LINES_MAX
    assert lines[-1].startswith(SURE)
    assert len(ROLE.sub("12.3", " ".join(lines))) <= ANSWER_LETTERS_MAX
    asked = first[first.index("## Question") + len("## Question") : box.start()].strip()
    assert len(re.findall(r"[.?!]\**(?=\s|$)", asked)) <= QUESTION_SENTENCES_MAX


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_numbers_of_answers_and_captions_come_from_cells(path):
    cells = jupytext.read(path).cells
    figures = [cell.metadata.get("mystnb", {}).get("figure", {}) for cell in cells]
    box = BOX.search(cells[0].source)
    texts = [figure.get("caption", "") for figure in figures] + ([box[1]] if box else [])
    typed = TYPED.findall(ROLE.sub("", " ".join(texts)))
    assert not set(typed) - set(GIVEN), "glue them, or say in GIVEN why a cell cannot give them"


@each_chapter
def test_a_picture_stands_before_the_prediction(path):
    cells = jupytext.read(path).cells
    before = itertools.takewhile(lambda cell: not re.search(r"^## Pred", cell.source, re.M), cells)
    assert any("figure" in cell.metadata.get("mystnb", {}) for cell in before)


@each_chapter
def test_its_sections_stand_in_order(path):
    texts = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "markdown"]
    found = re.findall(r"^## (.+)$", "\n".join(texts), re.MULTILINE)
    assert [name for name in found if name in SECTIONS] == SECTIONS


@each_chapter
def test_a_chapter_is_short(path):
    texts = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "markdown"]
    assert sum(len(text.split()) for text in texts) <= WORDS_MAX


@each_chapter
def test_a_cell_that_says_it_drew_has_a_picture(path):
    """Only Bench and such cells write the log, which says that no kind of figure is missing."""
    cells = nbformat.read(path.with_suffix(".ipynb"), as_version=4).cells
    said = re.compile(rf"\.plot_(?:{'|'.join(FIGURES)})\(|\.log\.drew\(")
    noted = [cell for cell in cells if cell.cell_type == "code" and said.search(cell.source)]
    assert noted
    for cell in noted:
        assert any("image/png" in o.get("data", {}) for o in cell.outputs), cell.source


def test_no_figure_and_no_table_stands_in_two_chapters():
    owners = {}
    for path in CHAPTERS:
        for kind, found in (("figure", pictures(path)), ("table", tables(path))):
            for content in found:
                data = content if isinstance(content, bytes) else content.encode()
                owners.setdefault((kind, hashlib.sha256(data).hexdigest()), set()).add(path.stem)
    assert not [(kind, names) for (kind, _), names in owners.items() if len(names) > 1]


REFERENCE = [ROOT / "notebooks" / name for name in ("results.py", "the_bench.py")]


@pytest.mark.parametrize("path", [*CHAPTERS, *REFERENCE], ids=lambda path: path.stem)
def test_a_figure_is_no_taller_than_a_screen(path):
    for picture in pictures(path):
        width, height = struct.unpack(">II", picture[16:24])
        assert height / width * COLUMN_WIDTH <= SCREEN_HEIGHT
