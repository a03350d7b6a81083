"""Draws the pictures of the pages: python book/pictures.py [FOLDER]."""

import sys
from pathlib import Path

import chapter_frame
import jupytext
import matplotlib.pyplot as plt
import pandas as pd
from notebook_io import NOTEBOOKS

from labkernels.plots.primers import book

FOLDER = Path(__file__).with_name("_static")


def draw(folder: Path) -> list[Path]:
    """Writes the pictures, with the same bytes for the same chapters."""
    chapters = chapter_frame.chapters()
    rows = [(c.file, title(c.file), c.part, words(c)) for c in chapters]
    needs = [(c.file, needed) for c in chapters for needed in c.needs]
    figures = {
        "map.svg": book.chapter_map(
            pd.DataFrame(rows, columns=["name", "title", "part", "words"]),
            pd.DataFrame(needs, columns=["name", "needed"]),
        ),
        "one_look.svg": book.one_look(),
        "one_look.narrow.svg": book.one_look(narrow=True),
    }
    for name, figure in figures.items():
        with plt.rc_context(book.SVG):
            figure.savefig(folder / name, metadata={"Date": None})
        plt.close(figure)
    return [folder / name for name in figures]


def title(name: str) -> str:
    """Returns a chapter's title, in two lines where it is long."""
    first = jupytext.read(NOTEBOOKS / f"{name}.py").cells[0].source.splitlines()[0]
    text = first.removeprefix("# ")
    middle = text.find(" ", len(text) // 2 - 2)
    return text if len(text) < 22 or middle < 0 else f"{text[:middle]}\n{text[middle + 1 :]}"


def words(chapter: chapter_frame.Chapter) -> str:
    """Returns how long a chapter takes, and how difficult it is."""
    minutes = chapter.read_minutes + chapter.do_minutes
    return f"{minutes} min  {chapter_frame.DOTS[chapter.difficulty]}"


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
