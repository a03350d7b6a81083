"""One module, one grid of measurements, one data file; `discover` finds them.

An experiment module has NAME, TITLE, DATA_FILE and `run(options) -> Outcome`.
Modules whose names begin with an underscore are parts of an experiment.
"""

import importlib
import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from labkernels.records import provenance
from labkernels.records.store import DATA_DIR


@dataclass(frozen=True)
class Options:
    """What a recording is asked for; `say` takes each line of progress.

    peer_path: the file of a peer that is no package: see measure.triton_tutorial.
    """

    out: Path = DATA_DIR
    repeats: int = 50
    seed: int = 0
    quick: bool = False
    only: str = ""
    replace: bool = False
    commit: str = ""
    peer_path: Path | None = None
    say: Callable[[str], None] = print
    began_s: float = field(default_factory=time.monotonic)

    def picks(self, label: str) -> bool:
        """Whether `only`, or one of its parts between bars, is a part of the label."""
        return any(part in label for part in self.only.split("|"))

    def progress(self, text: str) -> None:
        """Say a line that begins with the elapsed time."""
        self.say(f"[{time.monotonic() - self.began_s:6.1f} s] {text}")


@dataclass(frozen=True)
class Outcome:
    """How many rows were written, to which files, and what failed."""

    rows: int
    files: tuple[Path, ...]
    failures: tuple[str, ...] = ()


def commit_text(options: Options) -> str:
    """Return the commit to record, with `-dirty` if the source differs from it.

    Raises: ValueError if it is not given and the source is no git checkout.
    """
    commit, dirty = provenance.source_state(options.commit)
    return f"{commit}-dirty" if dirty else commit


def discover() -> dict[str, ModuleType]:
    """Return every experiment by its name."""
    modules = [
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
        if not found.name.startswith("_")
    ]
    return {module.NAME: module for module in sorted(modules, key=lambda module: module.NAME)}


def find(name: str) -> ModuleType:
    """Return the experiment of this name.

    Raises: ValueError listing the names there are.
    """
    found = discover()
    if name not in found:
        raise ValueError(f"experiment is {name!r}; allowed: {', '.join(found)}")
    return found[name]
