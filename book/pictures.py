"""Draws the pictures of the pages: python book/pictures.py [FOLDER]."""

import sys
from pathlib import Path

import chapter_frame
import jupytext
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from notebook_io import NOTEBOOKS
from versions.narrow import LEAST_POINTS
from versions.narrow import WIDTH_INCHES as NARROW_INCHES

from labkernels.plots import style
from labkernels.plots.primers.machine import box

FOLDER = Path(__file__).with_name("_static")
_FILLS = {"Primers": "#fdebd0", "Foundations": "#d8f0e6", "Cases": "#d7ebf7"}
_CENTRE = {"ha": "center", "va": "center"}
_ARROW = {"arrowstyle": "-|>", "color": "#8b95a1", "lw": 1.0, "shrinkA": 0, "shrinkB": 0}
# Text in an SVG stays text, and the same picture always has the same bytes.
SVG = style.HOUSE | {"svg.fonttype": "none", "svg.hashsalt": "labkernels"}


def draw(folder: Path) -> list[Path]:
    """Writes the pictures, with the same bytes for the same chapters."""
    chapters = chapter_frame.chapters()
    rows = [(c.file, title(c.file), c.part, words(c)) for c in chapters]
    needs = [(c.file, needed) for c in chapters for needed in c.needs]
    figures = {
        "map.svg": chapter_map(
            pd.DataFrame(rows, columns=["name", "title", "part", "words"]),
            pd.DataFrame(needs, columns=["name", "needed"]),
        ),
        "one_look.svg": one_look(),
        "one_look.narrow.svg": one_look(narrow=True),
    }
    for name, figure in figures.items():
        with plt.rc_context(SVG):
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


@plt.rc_context(SVG)
def chapter_map(chapters: pd.DataFrame, needs: pd.DataFrame) -> Figure:
    """Draws the chapters in rows by how deep they stand, with an arrow to each from what it needs.

    Shapes: chapters has name, title, part and words; needs has name and needed.
    """
    depth: dict[str, int] = {}
    for name in chapters.name:  # each chapter stands after those that it needs
        before = [depth[other] for other in needs.needed[needs.name == name]]
        depth[name] = max(before, default=-1) + 1
    rows = chapters.assign(depth=chapters.name.map(depth))
    figure, (axes,) = style.new_figure(height_inches=1.15 * (max(depth.values()) + 1))
    places: dict[str, tuple[float, float]] = {}
    for level, beside in rows.groupby("depth"):
        width = min(0.5, 1 / len(beside))
        for i, chapter in enumerate(beside.itertuples()):
            x = 0.5 + (i - (len(beside) - 1) / 2) * width
            places[chapter.name] = (x, float(level))
            _chapter(axes, x, float(level), width - 0.02, chapter)
    for pair in needs.itertuples():
        (x0, y0), (x1, y1) = places[pair.needed], places[pair.name]
        # behind the boxes, so that no arrow crosses a title
        axes.annotate("", (x1, y1 - 0.32), (x0, y0 + 0.32), arrowprops=_ARROW, zorder=0)
    for i, (part, fill) in enumerate(_FILLS.items()):
        box(axes, 0.02 + 0.34 * i, -0.95, 0.05, 0.2, fc=fill, boxstyle="square,pad=0")
        axes.text(0.085 + 0.34 * i, -0.85, part, va="center", fontsize=9)
    axes.set(xlim=(0, 1), ylim=(max(depth.values()) + 0.45, -1.05))
    axes.axis("off")
    return figure


def _chapter(axes: Axes, x: float, y: float, width: float, chapter) -> None:
    look = {"fc": _FILLS[chapter.part], "mutation_aspect": 2}
    box(axes, x - width / 2, y - 0.3, width, 0.6, **look)
    axes.text(x, y - 0.08, chapter.title, ha="center", va="center", fontsize=7.2, weight="bold")
    axes.text(x, y + 0.18, chapter.words, ha="center", va="center", fontsize=6.5)


_LOOK = {  # words and fill of each box; the first line is bold
    "source": ("#ffffff", "one kernel.cuh\nCUDA, or one kernel.py in Triton"),
    "formulas": ("#fdebd0", "formulas\nregisters, bytes, blocks,\ntime, error"),
    "cpu": ("#d8f0e6", "CPU machine\nyour laptop: the same bits,\nraces and stray reads named"),
    "gpu": ("#d7ebf7", "GPU\nrecorded once,\nwith its provenance"),
    "prediction": ("#fdebd0", "prediction"),
    "measurement": ("#d7ebf7", "measurement"),
    "answer": ("#ffffff", "their ratio: near one, or\nwhich line of the model is wrong"),
}
_WIDE = {  # left, top, width and height
    "source": (3.35, 0.0, 3.3, 0.9),
    "formulas": (0.0, 1.7, 2.9, 1.2),
    "cpu": (3.55, 1.7, 2.9, 1.2),
    "gpu": (7.1, 1.7, 2.9, 1.2),
    "prediction": (0.0, 3.7, 2.9, 0.8),
    "measurement": (5.3, 3.7, 2.9, 0.8),
    "answer": (2.65, 5.3, 4.7, 0.9),
}
_NARROW = {  # the two machines below each other
    "source": (1.6, 0.0, 6.8, 0.9),
    "formulas": (0.0, 1.7, 4.4, 1.2),
    "cpu": (4.7, 1.7, 5.3, 1.2),
    "gpu": (4.7, 3.0, 5.3, 1.2),
    "prediction": (0.0, 5.0, 4.4, 0.8),
    "measurement": (4.7, 5.0, 5.3, 0.8),
    "answer": (1.0, 6.6, 8.0, 0.9),
}
_PAIRS = ("source formulas", "source cpu", "formulas prediction", "gpu measurement")
_PAIRS += ("prediction answer", "measurement answer")
_BESIDE = ("source gpu", "cpu measurement")  # drawn where the two machines stand side by side


@plt.rc_context(SVG)
def one_look(*, narrow: bool = False) -> Figure:
    """Draws the lab: a prediction and a measurement of the same kernel, and their ratio."""
    places, pairs = (_NARROW, _PAIRS) if narrow else (_WIDE, _PAIRS + _BESIDE)
    bottom = sum(places["answer"][i] for i in (1, 3)) + 0.1
    width = NARROW_INCHES if narrow else 6.4
    figure, (axes,) = style.new_figure(
        height_inches=0.65 * bottom if narrow else 4.1, width_inches=width
    )
    small = LEAST_POINTS if narrow else 7.5
    for name, (x, y, wide, high) in places.items():
        fill, words = _LOOK[name]
        box(axes, x, y, wide, high, fc=fill)
        first, _, rest = words.partition("\n")
        lines = rest.count("\n") + 1 if rest else 0
        axes.text(x + wide / 2, y + high / 2 - 0.14 * lines, first, weight="bold", **_CENTRE)
        axes.text(x + wide / 2, y + high / 2 + 0.17, rest, fontsize=small, **_CENTRE)
    for pair in pairs:
        start, end = (places[name] for name in pair.split())
        foot = (start[0] + start[2] / 2, start[1] + start[3])
        axes.annotate("", (end[0] + end[2] / 2, end[1]), foot, arrowprops=_ARROW)
    axes.set(xlim=(-0.05, 10.05), ylim=(bottom, -0.1))
    axes.axis("off")
    return figure


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
