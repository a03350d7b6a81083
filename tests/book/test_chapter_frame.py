"""Each chapter has its frame, nothing is needed before it is taught, and the pages say the same."""

import itertools
import re

import chapter_frame
import pictures
import pytest
import yaml

from labkernels.chapters import exercises
from tests.repo.files import read

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
