"""The verdict on code like other people's: false alarms, detected bugs, and the bugs' names."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.measure.strangers import runs, split
from labkernels.measure.strangers.held_out import inputs as new_inputs
from labkernels.measure.strangers.held_out import right as new_right
from labkernels.measure.strangers.wrong import PARTS
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/strangers.parquet"
DTYPES = ("fp16", "bf16", "fp32")
SHAPES = len(new_inputs.SHAPES)
DEVICE = "CPU, NumPy and torch"
# The families on which seen bugs are judged. In none are all keys or all values equal, which would
# hide a bug.
_FAMILIES = (
    "values that walk",
    "documents",
    "one loud head",
    "pauses",
    "near twins",
    "uniform about 0",
    "cosine",
    "Weibull",
)
_NEW_FAMILIES = tuple(new_inputs.FAMILIES)
_SEEN = 6  # one in so many of what was seen is judged: the figures to quote are of the others
_SEEN_BUGS = 17  # one in so many of the bugs, which take longest
_OF_NEW_BUG = 2  # outputs per held-out bug: one has the bug in all rows, one may have it in a part
RIGHT, WRONG = "right", "wrong"


@dataclass(frozen=True)
class Kind:
    """Right implementations on one family of inputs, or one bug on several families."""

    role: str
    name: str


def cells(options: Options) -> Iterator[Cell]:
    """Yield families, then bugs: held-out ones and a few others; `quick` keeps a few of each."""
    step = 12 if options.quick else 1
    families, bugs = _chosen(split.FAMILIES, _SEEN), _chosen(split.WRONG, _SEEN_BUGS)
    for role, names in ((RIGHT, families), (WRONG, bugs)):
        for name in itertools.islice(names, 0, None, step):
            yield Cell(f"{role}/{name}", Kind(role, name))


def _chosen(names: Iterable[str], every: int) -> list[str]:
    """Return the names that are held out, and about one in `every` of the others."""
    return [n for n in names if split.of(n) == split.HELD_OUT or not _number(n) % every]


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Judge the outputs of a cell on this machine's CPU, whose cores take cells in turn."""
    found = recording.ahead(runs_of, cell, split.FIRST_HELD_OUT_SEED + recording.options.seed)
    recording.tell(f"{len(found)} outputs judged")
    yield from ((DATA_FILE, row) for row in counted(cell.of.role, found))


def runs_of(kind: Kind, first_seed: int) -> list[runs.Run]:
    """Return the runs of a cell, in a worker of the recording."""
    return list(of_kind(kind, first_seed))


def of_kind(kind: Kind, first_seed: int) -> Iterator[runs.Run]:
    """Yield the runs of a cell.

    A held-out family runs with all held-out implementations and a sixth of the seen ones, in every
    format. A seen family runs with the held-out implementations in fp32 alone, the format that had
    most false alarms.
    """
    if kind.role == WRONG:
        yield from runs.of_wrong(kind.name, cases(kind.name, first_seed))
        return
    seeds = (first_seed + _number(kind.name) % SHAPES,)
    if kind.name in new_inputs.FAMILIES:
        yield from runs.of_right([kind.name], _chosen(split.RIGHT, _SEEN), DTYPES, seeds)
    else:
        yield from runs.of_right([kind.name], new_right.RIGHT, DTYPES[-1:], seeds)


def cases(bug: str, first_seed: int) -> Iterator[tuple[str, str, int, str]]:
    """Yield family, dtype, seed and part in turn, from a start that depends on the bug's name.

    A bug that was seen has one case.
    """
    start = _number(bug)
    seen = split.of(bug) != split.HELD_OUT
    first = start % SHAPES
    families = _FAMILIES if seen else _NEW_FAMILIES
    for i in range(first, first + (1 if seen else _OF_NEW_BUG)):
        family = families[(start + i) % len(families)]
        dtype = DTYPES[(start + i + i // SHAPES) % len(DTYPES)]
        part = PARTS[(start + i) // 2 % len(PARTS)] if i % 2 else PARTS[0]
        yield family, dtype, first_seed + i, part


def _number(name: str) -> int:
    return sum(name.encode())


def counted(role: str, found: Iterable[runs.Run]) -> list[Row]:
    """Return a row for each set, kind, family and format."""
    groups: dict[tuple[str, ...], list[runs.Run]] = {}
    for run in found:
        groups.setdefault((run.set, run.kind, run.family, run.dtype), []).append(run)
    return [_row(role, key, some) for key, some in groups.items()]


def _row(role: str, key: tuple[str, ...], some: list[runs.Run]) -> Row:
    answers = Counter(run.answer for run in some)
    named = Counter(run.named for run in some)
    return {
        **dict(zip(("set", "kind", "family", "dtype"), key, strict=True)),
        "role": role,
        "runs": len(some),
        "rounding": answers["ROUNDING"],
        "inconclusive": answers["INCONCLUSIVE"],
        "less_exact": answers["LESS EXACT"],
        "bug": answers["BUG"],
        "named_right": named[runs.RIGHT_NAME],
        "named_wrong": named[runs.WRONG_NAME],
        "not_named": named[runs.NO_NAME],
        "names_listed": sum(run.listed for run in some if run.named == runs.RIGHT_NAME),
        "seconds": round(sum(run.seconds for run in some), 3),
        "device": DEVICE,
    }


EXPERIMENT = Experiment(
    "strangers",
    "The verdict on right and wrong outputs of other code, with a held-out set",
    {DATA_FILE: schema.TABLES["strangers"]},
    cells,
    rows,
    needs_gpu=False,
)
