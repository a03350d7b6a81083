"""The frame of a chapter: what stands below its title and at its end, from chapters.toml."""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat

DATA = Path(__file__).with_name("chapters.toml")
NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
ANSWER = ":::{admonition} Answer"
LOOK = ":class: important"
WORDS_A_MINUTE, MINUTES_A_FIGURE = 200, 1
DOTS = {1: "●○○", 2: "●●○", 3: "●●●"}
# The columns of the picture in primer 0, which each later chapter points into.
LAUNCHED = ("grid", "thread block", "warp", "lane")
RUNS_ON = ("SM", "shared memory", "registers", "L2 cache", "global memory")
PICTURE = "your_first_kernel.html#gpu-locator"


@dataclass(frozen=True)
class Chapter:
    """An entry of chapters.toml."""

    file: str
    part: str
    do_minutes: int
    difficulty: int
    widgets: tuple[list[str], ...]  # of labkernels.widgets, with the kernel: what a page offers
    needs: tuple[str, ...]
    objectives: tuple[str, ...]
    takeaways: tuple[str, ...]
    further: tuple[str, ...]
    where: tuple[str, ...] = ()  # the parts of a launch and of a GPU that it is about
    folded: tuple[str, ...] = ()  # titles of sections that a page shows when asked
    # of a primer: what is given, the ways from there, what is asked
    case: dict[str, str | tuple[str, ...]] | None = None

    @property
    def read_minutes(self) -> int:
        """The time of its words and figures, in steps of five minutes."""
        cells = jupytext.read(NOTEBOOKS / f"{self.file}.py").cells
        words = sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")
        figures = sum("figure" in cell.metadata.get("mystnb", {}) for cell in cells)
        minutes = words / WORDS_A_MINUTE + figures * MINUTES_A_FIGURE
        return 5 * math.ceil(minutes / 5)


def chapters() -> list[Chapter]:
    """Returns the chapters in the order of the book."""
    entries = tomllib.loads(DATA.read_text(encoding="utf-8"))["chapter"]
    return [
        Chapter(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
        for entry in entries
    ]


def locator(chapter: Chapter) -> str:
    """Returns the parts of a launch and of a GPU in one line, the chapter's own marked."""
    columns = [
        " › ".join(f"<b>{part}</b>" if part in chapter.where else part for part in column)
        for column in (LAUNCHED, RUNS_ON)
    ]
    words = f'<a href="{PICTURE}">Where you are</a>: <span>{columns[0]}</span>'
    line = f'<p class="lab-where">{words} <span>{columns[1]}</span></p>'
    return f"```{{raw}} html\n{line}\n```\n" if chapter.where else ""


def header(chapter: Chapter, *, folded: bool = False) -> str:
    """Returns place, time, difficulty, the chapters to read before, and what it teaches.

    folded: whether only the first of these shows until a reader opens the box.
    """
    needs = ", ".join(f"{{doc}}`{name}`" for name in chapter.needs) or "nothing but Python"
    objectives = "\n".join(f"- {objective}" for objective in chapter.objectives)
    times = f"{chapter.read_minutes} minutes to read, {chapter.do_minutes} to do"
    look = "tip chapter-head dropdown" if folded else "tip chapter-head"
    return f"""
{locator(chapter)}
:::{{admonition}} {times} · difficulty {DOTS[chapter.difficulty]}
:class: {look}

When you have read this chapter you can

{objectives}

It needs: {needs}.
:::
"""


def footer(chapter: Chapter, following: Chapter | None) -> str:
    """Returns what to remember, what to read, and which chapter comes next."""
    takeaways = "\n".join(f"{i}. {text}" for i, text in enumerate(chapter.takeaways, 1))
    further = ", ".join(f"{{cite:t}}`{key}`" for key in chapter.further)
    after = f"\n\nThe next chapter is {{doc}}`{following.file}`." if following else ""
    return f""":::{{admonition}} Take away
:class: important chapter-foot

{takeaways}

Further reading: {further}.{after}
:::
"""


def framed(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """Returns the notebook of a chapter with its frame.

    The head stands below the title, or below the first figure of a chapter that answers at once.
    """
    order = chapters()
    here = [chapter.file for chapter in order].index(name)
    following = order[here + 1] if here + 1 < len(order) else None
    first = notebook.cells[0]
    if ANSWER in first.source:
        first.source = first.source.replace(LOOK, f"{LOOK} lab-answer", 1)
        head = nbformat.v4.new_markdown_cell(header(order[here], folded=True), id="chapter-head")
        notebook.cells.insert(_after_first_figure(notebook), head)
    else:
        title, _, rest = first.source.partition("\n")
        first.source = f"{title}\n{header(order[here])}{rest}"
    last = nbformat.v4.new_markdown_cell(footer(order[here], following), id="chapter-foot")
    notebook.cells.append(last)
    return notebook


def _after_first_figure(notebook: nbformat.NotebookNode) -> int:
    figures = ("figure" in cell.metadata.get("mystnb", {}) for cell in notebook.cells)
    return next((i for i, is_one in enumerate(figures, 1) if is_one), 1)
