"""Which rules find which bugs, and which of them call a right output wrong."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments import _detection_runs as runs
from labkernels.experiments._detection_runs import Cell, Task
from labkernels.experiments._workers import all_cores
from labkernels.measure import mutants
from labkernels.measure.judge import REFUSED, UNDECIDED, VERDICT
from labkernels.measure.mutants import LENGTHS, MUTANTS
from labkernels.records import datapackage, schema, store
from labkernels.records.store import Row

NAME = "detection"
TITLE = "Bugs found, and false alarms, by the verdict and by the rules of other projects"
DATA_FILE = "detection.csv"
CPU = "CPU build"
SEEDS = 8


def run(options: Options) -> Outcome:
    """Run on this machine's GPU, or on its CPU build where it has none, and write the counts.

    The rows of the other kind of machine stay. `only` keeps tasks by label, as right/peaky/bf16.
    Raises: ValueError if part of the table would replace the committed one.
    """
    if (options.quick or options.only) and options.out == store.DATA_DIR:
        raise ValueError("out is data/, where the table must be whole; allowed: --out FOLDER")
    started, commit = datetime.now(UTC), commit_text(options)
    device, machine = _device()
    shortest = min(LENGTHS)
    chosen = [
        task
        for task in runs.tasks(1 if options.quick else SEEDS)
        if options.only in task.label and (task.kv_len == shortest or not options.quick)
    ]
    options.progress(f"{len(chosen)} sets of inputs on {machine}")
    with all_cores() as spread:
        if device == "cuda":
            list(spread(_compile, sorted({(n, task.dtype) for task in chosen for n in MUTANTS})))
        answers = []
        for number, found in enumerate(spread(_run, [(task, device) for task in chosen]), 1):
            answers += found
            if number % 40 == 0:
                options.progress(f"{number} sets done, {len(answers)} runs judged")
    rows = count(answers, {"device": machine, "commit": commit, "started_utc": f"{started:%FT%TZ}"})
    path = options.out / DATA_FILE
    store.replace(path, [*_kept(path, machine), *rows], schema.DETECTION)
    datapackage.write(options.out)
    options.progress(_summary(rows))
    return Outcome(len(rows), (path,))


def count(answers: Iterable[tuple[Cell, dict[str, str]]], origin: Row) -> list[Row]:
    """One row a cell and rule: how many runs, and how many of them the rule refused."""
    total, refused, undecided = Counter(), Counter(), Counter()
    for cell, by_rule in answers:
        for rule, answer in by_rule.items():
            key = (cell, rule)
            total[key] += 1
            refused[key] += answer == REFUSED
            undecided[key] += answer == UNDECIDED
    ordered = sorted(total, key=lambda key: (tuple(asdict(key[0]).values()), key[1]))
    return [
        {
            **origin,
            **asdict(cell),
            "rule": rule,
            "runs": total[cell, rule],
            "refused": refused[cell, rule],
            "undecided": undecided[cell, rule],
        }
        for cell, rule in ordered
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


def _device() -> tuple[str, str]:
    from labkernels.cuda import device

    if device.available() is not None:
        return "cpu", CPU
    import torch

    return "cuda", torch.cuda.get_device_name()


def _kept(path, machine: str) -> list[Row]:
    """Rows of the file that another machine wrote: one recording of a GPU, one of the CPU build."""
    if not path.exists():
        return []
    on_cpu = machine == CPU
    return [row for row in store.read(path) if (row["device"] == CPU) != on_cpu]


def _run(work: tuple[Task, str]) -> list[tuple[Cell, dict[str, str]]]:
    return runs.run(*work)


def _compile(work: tuple[str, str]) -> None:
    """Leave a mutant's machine code in the cache, so that no two workers compile the same."""
    name, dtype = work
    mutant = MUTANTS[name]
    case = mutants.exposing_case(mutant, min(LENGTHS), dtype, seed=0, device="cuda")
    for kernel in mutant.edits:
        mutants.decode(mutant, kernel, case)
