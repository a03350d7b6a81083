"""The verdict on code like other people's: false alarms, found bugs, their classes and places."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.measure.strangers import runs, split
from labkernels.measure.strangers.wrong import PARTS
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/strangers.parquet"
DTYPES = ("fp16", "bf16", "fp32")
DEVICE = "CPU, NumPy and torch"
# The families on which bugs of the development set are judged. In none are all keys or all values
# equal, which would hide a bug.
_FAMILIES = ("normal", "peaky", "v of mean 1", "heads of different size", "activations", "uniform")
_SEEN = 6  # one in so many of the development set is judged: the figures to quote are of the others
_OF_NEW_BUG = 2  # outputs per held-out bug: one has the bug in all rows, one may have it in a part
RIGHT, WRONG = "right", "wrong"


@dataclass(frozen=True)
class Kind:
    """Right implementations on one family of a set's inputs, or one bug on several families."""

    role: str
    set: str
    name: str


def cells(options: Options) -> Iterator[Cell]:
    """Yield families, then bugs: the newest set's and a few others; `quick` keeps a few of each."""
    step = 12 if options.quick else 1
    for role in (RIGHT, WRONG):
        kinds = [Kind(role, of.name, name) for of in _sets().values() for name in _judged(of, role)]
        for kind in itertools.islice(kinds, 0, None, step):
            yield Cell(f"{role}/{kind.name}", kind)


def _sets() -> Mapping[str, split.BugSet]:
    return {of.name: of for of in (split.newest(), split.FIRST) if of is not None}


def _judged(of: split.BugSet, role: str) -> list[str]:
    """Return the families or bugs of a set that are judged."""
    names = of.families if role == RIGHT else of.wrong
    return [n for n in names if of is not split.FIRST or not _number(n) % _SEEN]


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Judge the outputs of a cell on this machine's CPU, whose cores take cells in turn."""
    found = recording.ahead(runs_of, cell, split.FIRST_HELD_OUT_SEED + recording.options.seed)
    recording.tell(f"{len(found)} outputs judged")
    yield from ((DATA_FILE, row_of(cell.of.role, run)) for run in found)


def runs_of(kind: Kind, first_seed: int) -> list[runs.Run]:
    """Return the runs of a cell, in a worker of the recording."""
    of = _sets()[kind.set]
    if kind.role == WRONG:
        return list(runs.of_wrong(kind.name, cases(kind.name, first_seed, of), of))
    seeds = (first_seed + _number(kind.name) % len(of.shapes),)
    return list(runs.of_right([kind.name], of.right, DTYPES, seeds, of))


def cases(
    bug: str, first_seed: int, of: split.BugSet = split.FIRST
) -> Iterator[tuple[str, str, int, str]]:
    """Yield family, dtype, seed and part in turn, from a start that depends on the bug's name.

    A bug of the development set has one case.
    """
    start, shapes = _number(bug), len(of.shapes)
    first, seen = start % shapes, of is split.FIRST
    families = _FAMILIES if seen else tuple(of.families)
    for i in range(first, first + (1 if seen else _OF_NEW_BUG)):
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
    "The verdict on right and wrong outputs of other code, with the newest set of bugs",
    {DATA_FILE: schema.TABLES["strangers"]},
    cells,
    rows,
    needs_gpu=False,
)
