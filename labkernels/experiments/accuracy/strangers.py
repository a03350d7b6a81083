"""The verdict on code of other people's kinds: false alarms, detection and names."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from labkernels.experiments.harness import Cell, Experiment, Options, Recording
from labkernels.measure.strangers import runs, split
from labkernels.measure.strangers.held_out import inputs as new_inputs
from labkernels.measure.strangers.held_out import right as new_right
from labkernels.measure.strangers.wrong import PARTS
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/strangers.csv"
DTYPES = ("fp16", "bf16", "fp32")
SHAPES = 6
DEVICE = "CPU, NumPy and torch"
# The families on which bugs are judged: a bug cannot show if all keys or all values are equal.
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
_SEEN = 6  # every so many of the families that were seen: the figures to quote are of the others
_SEEN_BUGS = 9  # and of the bugs, which take longest
_OF_NEW_BUG = 2  # outputs, in all rows and in a part of them
_SEEDS_OF_NEW = 2  # calls of a family that is held out, each of another shape
RIGHT, WRONG = "right", "wrong"


@dataclass(frozen=True)
class Kind:
    """Right implementations on one family of inputs, or one bug on several families."""

    role: str
    name: str


def cells(options: Options) -> Iterator[Cell]:
    """Yield the families, then the bugs, of those seen a few; `quick` keeps a few of each."""
    step = 12 if options.quick else 1
    bugs = [
        bug
        for bug in split.WRONG
        if split.of(bug) == split.HELD_OUT or not _number(bug) % _SEEN_BUGS
    ]
    for role, names in ((RIGHT, split.FAMILIES), (WRONG, bugs)):
        for name in itertools.islice(names, 0, None, step):
            yield Cell(f"{role}/{name}", Kind(role, name))


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Judge the outputs of a cell on this machine's CPU."""
    seed = split.FIRST_HELD_OUT_SEED + recording.options.seed
    found = list(of_kind(cell.of, seed))
    recording.tell(f"{len(found)} outputs judged")
    yield from ((DATA_FILE, row) for row in counted(cell.of.role, found))


def of_kind(kind: Kind, first_seed: int) -> Iterator[runs.Run]:
    """The runs of a cell.

    A family of the development set has been seen with its implementations: it meets the new ones
    in every format, and a sixth of them the old ones in fp32 alone, where most alarms were.
    """
    if kind.role == WRONG:
        yield from runs.of_wrong(kind.name, cases(kind.name, first_seed))
        return
    first = first_seed + _number(kind.name) % SHAPES
    if kind.name in new_inputs.FAMILIES:
        several = range(first, first + _SEEDS_OF_NEW)
        yield from runs.of_right([kind.name], split.RIGHT, DTYPES, several)
        return
    seeds = (first,)
    yield from runs.of_right([kind.name], new_right.RIGHT, DTYPES, seeds)
    if _number(kind.name) % _SEEN:
        return
    old = [name for name in split.RIGHT if name not in new_right.RIGHT]
    yield from runs.of_right([kind.name], old, DTYPES[-1:], seeds)


def cases(bug: str, first_seed: int) -> Iterator[tuple[str, str, int, str]]:
    """Family, dtype, seed and part, in turn from a random start; one of a bug that was seen."""
    start = _number(bug)
    seen = split.of(bug) != split.HELD_OUT
    first = start % SHAPES
    for i in range(first, first + (1 if seen else _OF_NEW_BUG)):
        family = _FAMILIES[(start + i) % len(_FAMILIES)]
        dtype = DTYPES[(start + i + i // SHAPES) % len(DTYPES)]
        part = PARTS[(start + i) // 2 % len(PARTS)] if i % 2 else PARTS[0]
        yield family, dtype, first_seed + i, part


def _number(name: str) -> int:
    return sum(name.encode())


def counted(role: str, found: Iterable[runs.Run]) -> list[Row]:
    """A row for each set, kind, family and format."""
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
        "seconds": round(sum(run.seconds for run in some), 3),
        "device": DEVICE,
    }


EXPERIMENT = Experiment(
    "strangers",
    "The verdict before strangers: right and wrong outputs of other code, on a held-out set",
    {DATA_FILE: schema.STRANGERS},
    cells,
    rows,
    needs_gpu=False,
    renewed=(DATA_FILE,),
)
