"""An experiment as one object: a grid of cells, the files that it fills, and its options."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkernels.records import store
from labkernels.records.schema import Table
from labkernels.records.store import Row


@dataclass(frozen=True)
class Options:
    """The options of a recording; `say` takes each line of progress.

    only: parts of cells' labels between bars; "" for all cells. scheduler: the address of a Dask
    scheduler whose workers measure the cells; "" for this machine.
    """

    out: Path = store.DATA_DIR
    repeats: int = 50
    seed: int = 0
    quick: bool = False
    only: str = ""
    replace: bool = False
    commit: str = ""
    scheduler: str = ""
    say: Callable[[str], None] = print

    def picks(self, label: str) -> bool:
        """Whether `only`, or one of its parts between bars, is a part of the label."""
        return any(part in label for part in self.only.split("|"))


@dataclass(frozen=True)
class Cell:
    """One step of a grid: the label by which it is listed and picked, and what is measured."""

    label: str
    of: Any = None


@dataclass(frozen=True, eq=False)
class Experiment:
    """A grid of measurements, and the files that it fills.

    tables: the columns of each file, by its name in the data folder. cells(options): the grid,
    which needs neither a GPU nor a compiler; `options.quick` shrinks it. rows(cell, recording):
    measures a cell and yields (file, row), without the columns that all rows of a recording share.
    missing(): the reason why this machine cannot measure it, besides the lack of a GPU; or None.
    renewed: files that a recording writes anew; other files grow. whole: whether the committed data
    may only have recordings of the whole grid. alone: whether a cell needs its worker's machine, or
    GPU, for itself, as its times count.
    """

    name: str
    title: str
    tables: Mapping[str, Table]
    cells: Callable[[Options], Iterable[Cell]]
    rows: Callable[..., Iterable[tuple[str, Row]]]
    needs_gpu: bool = True
    missing: Callable[[], str | None] = lambda: None
    renewed: tuple[str, ...] = ()
    whole: bool = False
    alone: bool = True

    def __reduce__(self) -> tuple[Callable, tuple[str]]:
        """Go to a worker as a name."""
        from labkernels import experiments

        return experiments.find, (self.name,)

    def chosen(self, options: Options) -> list[Cell]:
        """Return the cells that `only` picks, in the order of measurement.

        Raises: ValueError if there are none.
        """
        cells = list(self.cells(options))
        picked = [cell for cell in cells if options.picks(cell.label)]
        if not picked:
            example = f"such as {cells[0].label!r}" if cells else "of which there are none here"
            raise ValueError(
                f"only is {options.only!r} and matches nothing; allowed: parts of the labels that "
                f"`labkernels record {self.name} --list` shows, {example}"
            )
        return picked


@dataclass(frozen=True)
class Outcome:
    """How many rows were written, to which files, and what failed."""

    rows: int
    files: tuple[Path, ...]
    failures: tuple[str, ...] = ()
