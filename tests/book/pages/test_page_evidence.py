"""Cells with the tag `evidence` leave a chapter's page, which keeps their numbers and a link."""

import chapter_frame
import nbformat
import page_evidence
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from plain_roles import GLUED

from labkernels.bench.log import MIME
from tests.repo.files import ROOT

TAGS = {"tags": [page_evidence.TAG]}


def display(data, **metadata):
    return new_output("display_data", data=data, metadata=metadata)


@pytest.fixture
def chapter():
    table = display({"text/html": '<style>#T_ran th {}</style><table id="T_ran"></table>'})
    glued = display({GLUED: "'1.30'"}, scrapbook={"name": "gain_fp16"})
    log = display({MIME: {}, "text/html": "<table>ran</table>"})
    return new_notebook(
        cells=[
            new_markdown_cell("# Two roads\n\nText."),
            new_code_cell("shown", outputs=[table]),
            new_markdown_cell("Spills:", metadata=TAGS),
            new_code_cell("glue()", outputs=[table, glued], metadata=TAGS),
            new_code_cell("bench.log", outputs=[log], metadata=TAGS),
            new_markdown_cell("The end."),
        ]
    )


def test_a_section_has_the_words_tables_and_numbers_of_its_chapter(chapter):
    section = page_evidence.take(chapter, "two_roads")
    assert section.startswith("(evidence-two_roads)=\n## Two roads\n")
    for part in ("Spills:", "glue()", "| gain fp16 | 1.30 |", 'id="T_two_roads_ran"', ">ran<"):
        assert section.count(part) == 1
    assert "#T_two_roads_ran th" in section
    assert section.index(">ran<") < section.index("Spills:")
    assert "shown" not in section
    assert "bench.log" not in section


def test_the_page_keeps_the_code_unseen_and_links_to_its_evidence(chapter):
    page_evidence.take(chapter, "two_roads")
    sources = [cell.source for cell in chapter.cells]
    assert sources[:4] == ["# Two roads\n\nText.", "shown", "glue()", "bench.log"]
    assert [cell.metadata.get("tags") for cell in chapter.cells[2:4]] == [["remove-cell"]] * 2
    assert "evidence-two_roads" in sources[-1]


def test_a_page_without_such_cells_stays_as_it_is():
    notebook = new_notebook(cells=[new_markdown_cell("# A\n\nB")])
    assert page_evidence.take(notebook, "a") == ""
    assert notebook.cells[0].source == "# A\n\nB"


LOGGED = [each.file for each in chapter_frame.chapters() if each.part != "Primers"]


@pytest.mark.parametrize("name", LOGGED)
def test_the_log_of_a_chapter_is_evidence(name):
    """It is a table of provenance, of which a reader of the chapter needs nothing."""
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    logs = [c for c in cells if any(MIME in o.get("data", {}) for o in c.get("outputs", ()))]
    assert logs
    assert all(page_evidence.TAG in cell.metadata.tags for cell in logs)
