"""Each chapter has its frame, nothing is needed before it is taught, and the pages say the same."""

import itertools
import re

import chapter_frame
import jupytext
import nbformat
import pictures
import pytest
import yaml

from labkernels.chapters import exercises
from tests.repo.files import ROOT, read

CHAPTERS = chapter_frame.chapters()
NAMES = [chapter.file for chapter in CHAPTERS]


@pytest.fixture(params=CHAPTERS, ids=NAMES)
def chapter(request):
    return request.param


def test_chapters_are_those_of_the_book_in_its_order():
    parts = yaml.safe_load(read("book/_toc.yml"))["parts"]
    listed = [entry["file"] for p in parts if p.get("numbered") for entry in p["chapters"]]
    assert [f"notebooks/{name}" for name in NAMES] == [f for f in listed if "notebooks" in f]


def test_a_chapter_needs_only_what_stands_before_it(chapter):
    assert set(chapter.needs) <= set(NAMES[: NAMES.index(chapter.file)])
    named = set(re.findall(r"\{doc\}`(\w+)`", read(f"notebooks/{chapter.file}.py"))) & set(NAMES)
    needed = re.search(r"## You need\n(.*?)\n# %%", read(f"notebooks/{chapter.file}.py"), re.DOTALL)
    before = set(re.findall(r"\{doc\}`(\w+)`", needed[1] if needed else "")) & named
    assert before <= set(NAMES[: NAMES.index(chapter.file)])


def test_a_frame_is_whole(chapter):
    assert chapter.part in ("Primers", "Foundations", "Cases")
    assert 10 <= chapter.read_minutes <= 90
    assert 10 <= chapter.do_minutes <= 180
    assert 2 <= len(chapter.objectives) <= 4
    assert len(chapter.takeaways) == 3
    assert all(takeaway.endswith(".") for takeaway in chapter.takeaways)
    known = set(re.findall(r"^@\w+\{(\w+)", read("book/references.bib"), re.MULTILINE))
    assert chapter.further
    assert set(chapter.further) <= known


def test_every_later_chapter_points_into_the_picture_of_the_first(chapter):
    known = chapter_frame.LAUNCHED + chapter_frame.RUNS_ON
    marked = re.findall("<b>(.*?)</b>", chapter_frame.locator(chapter))
    assert set(chapter.where) <= set(known)
    assert marked == [part for part in known if part in chapter.where]
    assert bool(marked) == (chapter is not CHAPTERS[0])
    name = chapter_frame.PICTURE.partition("#")[2]
    assert f'"name": "{name}"' in read(f"notebooks/{NAMES[0]}.py")


def test_a_framed_notebook_has_its_header_below_the_title():
    name = "attention_block_by_block"
    notebook = jupytext.read(ROOT / "notebooks" / f"{name}.py")
    n_cells, title = len(notebook.cells), notebook.cells[0].source.splitlines()[0]
    framed = chapter_frame.framed(notebook, name)
    first, last = framed.cells[0].source, framed.cells[-1].source
    minutes = next(c.read_minutes for c in CHAPTERS if c.file == name)
    assert first.startswith(f'{title}\n\n```{{raw}} html\n<p class="lab-where">')
    assert f":::{{admonition}} {minutes} minutes to read" in first
    assert first.index(":::{admonition}") < first.index("## Question")
    assert "It needs: {doc}`a_gpu_in_one_sitting`." in first
    assert "1. A row of attention" in last
    assert "The next chapter is {doc}`fragments_and_rounding`." in last
    assert len(framed.cells) == n_cells + 1
    nbformat.validate(framed)


def test_a_chapter_that_answers_at_once_has_its_header_folded_below_its_first_figure():
    source = "# A\n\n## Question\n\nWhy?\n\n:::{admonition} Answer\n:class: important\n\nSo.\n:::"
    new = nbformat.v4
    figure = new.new_code_cell("draw()", metadata={"mystnb": {"figure": {"name": "a"}}})
    cells = [new.new_markdown_cell(source), figure, new.new_markdown_cell("## Prediction")]
    framed = chapter_frame.framed(new.new_notebook(cells=cells), "the_ladder").cells
    assert framed[0].source == source.replace("important", "important lab-answer")
    assert framed[1] is figure
    assert ":class: tip chapter-head dropdown" in framed[2].source
    assert framed[3].source == "## Prediction"


def test_the_minutes_to_read_follow_from_words_and_figures(tmp_path, monkeypatch):
    words = "# %% [markdown]\n# " + "word " * 1001
    figure = '# %% mystnb={"figure": {"name": "a"}}\n1\n'
    (tmp_path / "the_ladder.py").write_text(f"{words}\n\n{figure}")
    monkeypatch.setattr(chapter_frame, "NOTEBOOKS", tmp_path)
    chapter = next(each for each in CHAPTERS if each.file == "the_ladder")
    assert chapter.read_minutes == 10


def test_the_pictures_are_those_of_the_chapters(tmp_path):
    for path in pictures.draw(tmp_path):
        committed = pictures.FOLDER / path.name
        assert path.read_bytes() == committed.read_bytes(), "python book/pictures.py"
    drawn = (tmp_path / "map.svg").read_text()
    for name in NAMES:
        assert all(line in drawn for line in pictures.title(name).splitlines()), name


def test_the_page_of_assignments_lists_them():
    rows = re.findall(
        r"^\| (\d+) \| `(\w+)` \| (.*?) \| (\d+) \| (\S+) \|", read("book/assignments.md"), re.M
    )
    known = [exercises.get(name) for name in exercises.names()]
    expected = [
        (str(e.number), e.name, e.title, str(e.minutes), chapter_frame.DOTS[e.difficulty])
        for e in known
    ]
    assert rows == expected


def test_the_weeks_of_the_term_are_as_long_as_they_say():
    by_name = {chapter.file: chapter for chapter in CHAPTERS}
    weeks = [
        line.split("|")[1:-1]
        for line in read("book/paths.md").splitlines()
        if line[:3].strip("| ").isdigit()
    ]
    read_chapters = []
    for _, chapters, work, minutes in weeks:
        names = re.findall(r"notebooks/(\w+)", chapters)
        extra = re.findall(r", assignment (\d+)", work)
        known = {
            exercises.get(name).number: exercises.get(name).minutes for name in exercises.names()
        }
        total = sum(by_name[name].read_minutes + by_name[name].do_minutes for name in names)
        assert int(minutes) == total + sum(known[int(number)] for number in extra)
        read_chapters.append(names)
    assert list(itertools.chain(*read_chapters)) == NAMES
