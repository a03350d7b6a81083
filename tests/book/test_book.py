"""Every page is listed, every chapter has its sections, and every picture has alt text."""

import re

import jupytext
import pytest
from sphinx_external_toc.parsing import parse_toc_yaml

from tests.repo.files import ROOT, chapters, read

BOOK = ROOT / "book"
SCRIPTS = sorted((ROOT / "notebooks").glob("*.py"))
TEMPLATE = ROOT / "notebooks" / "_template.py"
DECISION_LINES_MAX = 40


def pages():
    """Return the listed pages, with globs expanded, as paths below the root without suffix."""
    site_map = parse_toc_yaml(BOOK / "_toc.yml")
    listed = set(site_map.keys())
    for document in site_map.values():
        for pattern in document.child_globs():
            listed |= {str(p.relative_to(ROOT).with_suffix("")) for p in ROOT.glob(f"{pattern}.md")}
    return listed


def cells(path):
    return jupytext.read(path).cells


def test_toc_lists_exactly_the_pages_that_exist():
    texts = {p.relative_to(ROOT).with_suffix("") for p in BOOK.rglob("*.md")}
    notebooks = {p.relative_to(ROOT).with_suffix("") for p in SCRIPTS if p != TEMPLATE}
    assert pages() == {path.as_posix() for path in texts | notebooks}


def test_intro_links_every_chapter():
    intro = read("book/intro.md")
    listed = chapters("Primers", "Chapters")
    missing = [path.stem for path in listed if f"notebooks/{path.stem}" not in intro]
    assert not missing, "the table of cases says which chapters are there"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_drawn_figure_has_caption_name_and_alt_text(path):
    for cell in cells(path):
        if cell.cell_type == "code" and "plt.show()" in cell.source:
            mystnb = cell.metadata.get("mystnb", {})
            assert {"caption", "name"} <= set(mystnb.get("figure", {})), cell.source
            assert len(mystnb.get("image", {}).get("alt", "")) > 20, cell.source


def test_every_included_picture_has_alt_text():
    for path in [*BOOK.rglob("*.md"), *SCRIPTS]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"!\[\s*\]\(", text), f"{path}: a picture without words"
        for directive in re.split(r"\{(?:figure|image)\} ", text)[1:]:
            assert re.match(r"\S+\n(?:# ?)?(?::\w+: .*\n(?:# ?)?)*?:alt: \S", directive), path


def test_decisions_are_short_and_a_missing_number_is_replaced_by_a_later_one():
    paths = sorted((BOOK / "decisions").glob("0*.md"))
    numbers, replaced = [int(path.name[:4]) for path in paths], []
    for number, path in zip(numbers, paths, strict=True):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for listed in re.findall(r"Replaces decisions ([\d, ]+)\.", text):
            replaced += [int(n) for n in listed.split(", ")]
            assert all(n < number for n in replaced), path.name
        assert lines[0].startswith(f"# {number}. "), path.name
        assert len(lines) <= DECISION_LINES_MAX, f"{path.name}: {len(lines)} lines"
    assert sorted(numbers + replaced) == list(range(1, max(numbers) + 1))
