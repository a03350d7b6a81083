"""Measure which rules find which bugs, and which rules call a right output wrong."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace

from labkernels.experiments.accuracy import detection_runs as runs
from labkernels.experiments.accuracy.detection_runs import Judged, Task
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import CPU, Recording
from labkernels.measure.judge.criteria import REFUSED, UNDECIDED, VERDICT
from labkernels.measure.mutants.decode import LENGTHS
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/detection.parquet"
SEEDS = 8


def cells(options: Options) -> Iterator[Cell]:
    """Yield the tasks that fill the same rows, with all their seeds.

    `quick` keeps one seed, length and dtype, and one kernel of each mutant: compiling all of them
    for a CPU takes minutes.
    """
    alike: dict[str, list[Task]] = {}
    for task in runs.tasks(1 if options.quick else SEEDS):
        if not options.quick:
            alike.setdefault(task.label, []).append(task)
        elif (task.kv_len, task.dtype) == (min(LENGTHS), "bf16"):
            alike.setdefault(task.label, []).append(replace(task, every_kernel=False))
    for label, tasks in alike.items():
        yield Cell(label, tasks)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Run a cell's kernels on the GPU, or as CPU builds without one, and count the answers."""
    counted = answers(cell.of, recording.device)
    recording.tell(_summary(counted))
    yield from ((DATA_FILE, row) for row in counted)


def answers(tasks: list[Task], device: str) -> list[Row]:
    """Run tasks on a device, and count every rule's answers."""
    return count(itertools.chain.from_iterable(runs.run(task, device) for task in tasks))


def count(answers: Iterable[tuple[Judged, dict[str, str]]]) -> list[Row]:
    """Return a row per kernel, kind of inputs and rule: how many runs, refused and undecided."""
    total, refused, undecided = Counter(), Counter(), Counter()
    for judged, by_rule in answers:
        for rule, answer in by_rule.items():
            key = (judged, rule)
            total[key] += 1
            refused[key] += answer == REFUSED
            undecided[key] += answer == UNDECIDED
    ordered = sorted(total, key=lambda key: (tuple(asdict(key[0]).values()), key[1]))
    return [
        {
            **asdict(judged),
            "rule": rule,
            "runs": total[judged, rule],
            "refused": refused[judged, rule],
            "undecided": undecided[judged, rule],
        }
        for judged, rule in ordered
    ]


def _summary(rows: list[Row]) -> str:
    judged = [row for row in rows if row["rule"] == VERDICT]
    wrong, right = (
        [row for row in judged if bool(row["mutant"]) == kind] for kind in (True, False)
    )
    totals = [
        sum(row[name] for row in part) for part in (wrong, right) for name in ("refused", "runs")
    ]
    return (
        f"verdict: {totals[0]} of {totals[1]} wrong outputs found, "
        f"{totals[2]} of {totals[3]} right ones called wrong"
    )


def _other_machine(row: Row, origin: Row) -> bool:
    """Return whether a row is of the other kind of machine; the file holds a GPU's and a CPU's."""
    return (row["device"] == CPU) != (origin["device"] == CPU)


EXPERIMENT = Experiment(
    "detection",
    "Bugs found, and false alarms, by the verdict and by the rules of other projects",
    {DATA_FILE: schema.TABLES["detection"]},
    cells,
    rows,
    needs_gpu=False,
    renewed=(DATA_FILE,),
    whole=True,
    keeps=_other_machine,
    alone=False,
)
