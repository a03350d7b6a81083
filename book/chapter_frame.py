"""The frame of a chapter: the boxes below its title and at its end, from chapters.toml."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import nbformat

DATA = Path(__file__).with_name("chapters.toml")
ANSWER = ":::{admonition} Answer"
DOTS = {1: "●○○", 2: "●●○", 3: "●●●"}


@dataclass(frozen=True)
class Chapter:
    """An entry of chapters.toml."""

    file: str
    part: str
    read_minutes: int
    do_minutes: int
    difficulty: int
    widgets: tuple[list[str], ...]  # of labkernels.widgets, with the kernel: what a page offers
    needs: tuple[str, ...]
    objectives: tuple[str, ...]
    takeaways: tuple[str, ...]
    further: tuple[str, ...]
    # of a primer: what is given, the ways from there, what is asked
    case: dict[str, str | tuple[str, ...]] | None = None


def chapters() -> list[Chapter]:
    """Returns the chapters in the order of the book."""
    entries = tomllib.loads(DATA.read_text(encoding="utf-8"))["chapter"]
    return [
        Chapter(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
        for entry in entries
    ]


def header(chapter: Chapter, *, folded: bool = False) -> str:
    """Returns time, difficulty, the chapters to read before, and what a reader can do after it.

    folded: whether only the first of these shows until a reader opens the box.
    """
    needs = ", ".join(f"{{doc}}`{name}`" for name in chapter.needs) or "nothing but Python"
    objectives = "\n".join(f"- {objective}" for objective in chapter.objectives)
    times = f"{chapter.read_minutes} minutes to read, {chapter.do_minutes} to do"
    look = "tip chapter-head dropdown" if folded else "tip chapter-head"
    return f"""
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
    """Returns the notebook of a chapter with its frame, whose head stands below an answer."""
    order = chapters()
    here = [chapter.file for chapter in order].index(name)
    following = order[here + 1] if here + 1 < len(order) else None
    first = notebook.cells[0]
    if ANSWER in first.source:
        first.source = f"{first.source}\n{header(order[here], folded=True)}"
    else:
        title, _, rest = first.source.partition("\n")
        first.source = f"{title}\n{header(order[here])}{rest}"
    last = nbformat.v4.new_markdown_cell(footer(order[here], following), id="chapter-foot")
    notebook.cells.append(last)
    return notebook
