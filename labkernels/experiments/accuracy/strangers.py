"""The verdict on code like other people's: false alarms, found bugs, their classes and places.

A set is a Python file, named by `--peer-path`, with SET, a `runs.BugSet`. Its classes are written
before the set is judged.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labkernels.experiments.accuracy.probe_sets import module_of
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.measure.strangers import runs
from labkernels.measure.strangers.wrong import PARTS
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/strangers.parquet"
DTYPES = ("fp16", "bf16", "fp32")
DEVICE = "CPU, NumPy and torch"
FIRST_SEED = 90_000  # smaller seeds were judged while the verdict was written
_OF_BUG = 2  # outputs per bug: one has the bug in all rows, one may have it in a part
RIGHT, WRONG = "right", "wrong"


@dataclass(frozen=True)
class Kind:
    """Right implementations on one family of a set's inputs, or one bug on several families."""

    role: str
    set: Path
    name: str


def cells(options: Options) -> Iterator[Cell]:
    """Yield families, then bugs; `quick` keeps a few of each."""
    if options.peer_path is None:
        return
    of: runs.BugSet = module_of(options.peer_path).SET
    for role, names in ((RIGHT, of.families), (WRONG, of.wrong)):
        for name in itertools.islice(names, 0, None, 12 if options.quick else 1):
            yield Cell(f"{role}/{name}", Kind(role, options.peer_path, name))


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Judge the outputs of a cell on this machine's CPU, whose cores take cells in turn."""
    found = recording.ahead(runs_of, cell, FIRST_SEED + recording.options.seed)
    recording.tell(f"{len(found)} outputs judged")
    yield from ((DATA_FILE, row_of(cell.of.role, run)) for run in found)


def runs_of(kind: Kind, first_seed: int) -> list[runs.Run]:
    """Return the runs of a cell, in a worker of the recording."""
    of: runs.BugSet = module_of(kind.set).SET
    if kind.role == WRONG:
        return list(runs.of_wrong(kind.name, cases(kind.name, first_seed, of), of))
    seeds = (first_seed + _number(kind.name) % len(of.shapes),)
    return list(runs.of_right([kind.name], of.right, DTYPES, seeds, of))


def cases(bug: str, first_seed: int, of: runs.BugSet) -> Iterator[tuple[str, str, int, str]]:
    """Yield family, dtype, seed and part in turn, from a start that depends on the bug's name."""
    start, shapes, families = _number(bug), len(of.shapes), tuple(of.families)
    first = start % shapes
    for i in range(first, first + _OF_BUG):
        family = families[(start + i) % len(families)]
        dtype = DTYPES[(start + i + i // shapes) % len(DTYPES)]
        part = PARTS[(start + i) // 2 % len(PARTS)] if i % 2 else PARTS[0]
        yield family, dtype, first_seed + i, part


def _number(name: str) -> int:
    return sum(name.encode())


def row_of(role: str, run: runs.Run) -> Row:
    """Return the row of one output."""
    said = run.said
    return {
        "set": run.set,
        "role": role,
        "kind": run.kind,
        "family": run.family,
        "dtype": run.dtype,
        "runs": 1,
        **{_column(answer): int(run.answer == answer) for answer in _ANSWERS},
        "named_right": int(said.graded == runs.RIGHT_CLASS),
        "named_wrong": int(said.graded == runs.WRONG_CLASS),
        "not_named": int(said.graded == runs.NO_CLASS),
        "seconds": round(run.seconds, 3),
        "device": DEVICE,
        "part": run.part,
        "classes": _listed(said.classes),
        "region": said.region,
        "edit": said.edit,
        "before": _finite(said.before),
        "after": _finite(said.after),
        "placed": "" if said.placed is None else said.placed,
    }


_ANSWERS = ("ROUNDING", "INCONCLUSIVE", "LESS EXACT", "BUG")


def _column(answer: str) -> str:
    return answer.lower().replace(" ", "_")


def _listed(classes: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(classes))


def _finite(number: float | None) -> float | str:
    """Return a number for a cell, which is empty where the verdict has none."""
    return round(number, 4) if number is not None and abs(number) < float("inf") else ""


EXPERIMENT = Experiment(
    "strangers",
    "The verdict on right and wrong outputs of a set of other code",
    {DATA_FILE: schema.TABLES["strangers"]},
    cells,
    rows,
    needs_gpu=False,
)
