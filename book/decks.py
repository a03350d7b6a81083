"""A deck of slides for each week: a sentence and a figure, an equation or a few lines of code."""

import base64
import html
import re
import tomllib
from pathlib import Path

import nbformat
import slides
import versions
from nbformat.v4 import new_markdown_cell, new_notebook
from notebook_io import NOTEBOOKS, ROOT
from page_figures import MIME
from plain_roles import Words

from labkernels.chapters.exercises.overlay import region

EXECUTED = ROOT / "_build" / "executed"  # by make book
FILE = Path(__file__).with_name("teaching") / "decks.toml"
FIGURE = re.compile(r"(\w+) ([\w-]+)")
REGION = re.compile(r"region: (\S+) (.+)")
# A room sees these: no words below 18 px, and figures as large as the slide allows.
STYLE = """
  .reveal section h2 { font-size: 34px; line-height: 1.2; margin-bottom: 8px; }
  .reveal section :is(p, li, table) { font-size: 32px; }
  .reveal section :is(pre, pre code) { font-size: 22px; }
  .reveal section img { height: 575px; max-height: 575px !important; width: 100%; }
  .reveal section img { margin: 0; max-width: 100%; object-fit: contain; }
  .reveal .jp-InputPrompt { display: none; }
  .reveal .controls { zoom: 0.5; }
  .reveal .beside { display: block !important; }
"""


def decks() -> list[dict]:
    """Returns title and slides of each week's deck."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))["deck"]


def write(folder: Path) -> None:
    """Writes week_1.html and so on, beside the scripts that the slides of chapters load."""
    for week, deck in enumerate(decks(), 1):
        page = slides.html(notebook(week, deck))
        page = page.replace("</head>", f"<style>{STYLE}</style></head>", 1)
        (folder / f"week_{week}.html").write_text(page, encoding="utf-8")


def notebook(week: int, deck: dict) -> nbformat.NotebookNode:
    """Returns a deck as cells: a title, and a slide with its note for each idea."""
    cells = [_slide(f"# Week {week}: {deck['title']}", "slide")]
    for says, below in deck["slides"]:
        shown, note = _shown(below)
        cells += [_slide(f"## {says}\n\n{shown}", "slide"), _slide(note, "notes")]
    return new_notebook(cells=cells)


def _slide(source: str, kind: str) -> nbformat.NotebookNode:
    return new_markdown_cell(source, metadata={"slideshow": {"slide_type": kind}})


def _shown(below: str) -> tuple[str, str]:
    """Returns what stands below a sentence, as Markdown, and the speaker's note."""
    if found := FIGURE.fullmatch(below):
        return _figure(*found.groups())
    if found := REGION.fullmatch(below):
        return f"```cpp\n{region(*found.groups()).strip()}\n```", f"From {found[1]}."
    return below, ""


def _figure(chapter: str, name: str) -> tuple[str, str]:
    """Returns a figure of a chapter with its alternative text, and its caption.

    Where the book was built, the figure is drawn anew for slides.
    Raises: ValueError if the chapter has no figure of that name.
    """
    drawn, data = _drawn(NOTEBOOKS, chapter, name)
    if not drawn:
        raise ValueError(f"figure = {name!r}, allowed: a figure of {chapter}")
    image = f"png;base64,{''.join(data['image/png'].split())}"
    if kept := _drawn(EXECUTED, chapter, name)[1].get(MIME, {}).get("figure"):
        image = f"svg+xml;base64,{base64.b64encode(versions.flat(kept).encode()).decode()}"
    alt = html.escape(drawn["image"]["alt"], quote=True)
    words = Words(chapter, nbformat.read(NOTEBOOKS / f"{chapter}.ipynb", as_version=4))
    return f'<img alt="{alt}" src="data:image/{image}">', words.plain(drawn["figure"]["caption"])


def _drawn(folder: Path, chapter: str, name: str) -> tuple[dict, dict]:
    """Returns what a notebook says of a figure, and the figure by format; else nothing."""
    path = folder / f"{chapter}.ipynb"
    for cell in nbformat.read(path, as_version=4).cells if path.exists() else ():
        drawn = cell.metadata.get("mystnb", {})
        if drawn.get("figure", {}).get("name") == name:
            (data,) = (d for o in cell.outputs if "image/png" in (d := o.get("data", {})))
            return drawn, data
    return {}, {}
