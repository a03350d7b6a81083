"""Slides of a chapter: headings, first sentences, equations, listings, tables and figures.

The speaker's notes, which the key S shows, have the text in full.
"""

import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import chapter_frame
import nbformat
from nbconvert import SlidesExporter
from nbformat.v4 import new_markdown_cell
from notebook_io import NOTEBOOKS
from plain import ANSWER, FOLDED_CODE, FOLDED_OUTPUT, SOLUTION

TEMPLATE = Path(__file__).with_name("slides.html.j2")
MATHJAX = "tex-svg-full.js"
BLOCK = re.compile(r"```(?s:.*?)^```$|\$\$(?s:.*?)^\$\$$|(?:.+\n?)+", re.M)
SENTENCE = re.compile(r".+?[.?!](?:\*\*)?(?=\s|$)|.+", re.S)
SHOWN = ("```", "$$", "|", ">", "- ", "**Figure")
COMMENT = re.compile(r"<!--.*?-->", re.S)
ITEM = re.compile(r"\d+\. ")  # an item of a numbered list, which may begin with any number
FULL, CODE = 6, 5  # what a slide holds, and what a cell of code or a figure takes, in sentences
LEAST = 60  # characters, since a shorter sentence only announces what the next one says
UNSHOWN = (SOLUTION, "## You need", "### Run it here")


def write(folder: Path) -> None:
    """Writes the slides of every chapter, with the scripts that they load."""
    folder.mkdir(parents=True, exist_ok=True)
    reveal = Path(find_spec("sphinx_revealjs").origin).parent / "_static" / "revealjs"
    for part in ("dist", "plugin/notes"):
        shutil.copytree(reveal / part, folder / "reveal" / part, dirs_exist_ok=True)
    mathjax = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    shutil.copyfile(mathjax / MATHJAX, folder / MATHJAX)
    for chapter in chapter_frame.chapters():
        page = folder / f"{chapter.file}.html"
        notebook = nbformat.read(NOTEBOOKS / f"{chapter.file}.ipynb", as_version=4)
        page.write_text(html(deck(notebook)), encoding="utf-8")


def html(notebook: nbformat.NotebookNode) -> str:
    """Returns the page of a deck."""
    hidden = {"enabled": True, "remove_input_tags": FOLDED_CODE}
    exporter = SlidesExporter(
        template_file=str(TEMPLATE),
        reveal_url_prefix="reveal",
        reveal_theme="white",
        reveal_scroll=True,
        mathjax_url=MATHJAX,
        config={"TagRemovePreprocessor": hidden},
    )
    return exporter.from_notebook_node(notebook)[0]


def deck(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Returns the cells of a chapter as slides, without its solutions and its setup."""
    cells, filled = [], 0
    parts = list(_parts(notebook))
    for i, (cell, weight) in enumerate(parts):
        # A comment at the top of a code cell is not a heading.
        heading = cell.cell_type == "markdown" and cell.source.startswith("#")
        caption = cell.source.startswith("**Figure")
        kind = "-" if weight or heading else "notes"
        if heading and cell.source.startswith(("# ", "## ")):
            kind, filled = "slide", 0
        elif (
            filled
            and not caption
            and (heading or (weight and filled + weight > FULL and not _stands_last(parts[i:])))
        ):
            kind, filled = "subslide", 0
        filled += weight
        cell.metadata["slideshow"] = {"slide_type": kind}
        cells.append(cell)
    return nbformat.from_dict(notebook | {"cells": cells})


def _parts(notebook: nbformat.NotebookNode) -> Iterator[tuple[nbformat.NotebookNode, int]]:
    """Yields cells of one block each, and how much of a slide a block takes."""
    shown, whole = True, False
    for cell in notebook.cells:
        if (FOLDED_OUTPUT | {ANSWER}) & set(cell.metadata.get("tags", ())):
            continue
        if cell.cell_type == "code":
            if shown and (cell.outputs or not FOLDED_CODE & set(cell.metadata.get("tags", ()))):
                yield cell, CODE
            continue
        for block in map(str.strip, BLOCK.findall(COMMENT.sub("", cell.source))):
            if block.startswith("#"):
                shown = not block.startswith(UNSHOWN)
                whole = block.startswith("### Exercise")  # its question often comes last
            if not shown:
                continue
            if block.startswith("#"):
                yield new_markdown_cell(block), 0
            elif block.startswith(SHOWN) or ITEM.match(block):
                weights = {"```": CODE, "**F": 0.5}
                yield new_markdown_cell(block), weights.get(block[:3], 2)
            elif block.startswith("[labkernels/"):  # where a listing is from
                yield new_markdown_cell(block), 0
            else:
                first = block if whole or block.startswith("**") else _thought(block)
                first = first.replace("\n", " ")
                yield new_markdown_cell(f"- {first}"), 1
                yield new_markdown_cell(block), 0


def _thought(paragraph: str) -> str:
    """Returns the first sentence of a paragraph, with more if it asks or only announces."""
    taken = ""
    for sentence in SENTENCE.findall(paragraph):
        taken += sentence
        if len(taken) >= LEAST and not taken.rstrip("*").endswith("?"):
            break
    return taken


def _stands_last(parts: list[tuple[nbformat.NotebookNode, int]]) -> bool:
    """Returns whether the first part is a sentence right before the next heading."""
    (_, weight), *rest = parts
    following = next(((c, w) for c, w in rest if w or c.source.startswith("#")), None)
    return weight == 1 and (following is None or not following[1])
