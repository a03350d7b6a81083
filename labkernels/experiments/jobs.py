"""Folders of recordings that were made elsewhere, and how their rows come into `data/`.

`labkernels record --submit FOLDER` fills one by jobs, with a folder of rows and an outcome for each
experiment; `record --out FOLDER` on another machine fills one with the rows alone. `--gather
FOLDER` puts either into `data/`. The rows of an experiment come from one job or recording, so that
no table compares the clocks of two GPUs.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labkernels.experiments import discover, durations
from labkernels.experiments.experiment import Experiment, Options, Outcome
from labkernels.experiments.files import Files
from labkernels.experiments.sweep import check_place
from labkernels.records import datapackage, files, store
from labkernels.records.store import Row

SUBMITTED = "submitted.json"


def submitted(folder: Path, jobs: Mapping[str, str], options: Options) -> None:
    """Note the number of each experiment's job, and which cells the jobs measure."""
    _write(folder / SUBMITTED, {"jobs": dict(jobs), "quick": options.quick, "only": options.only})


def ended(folder: Path, name: str, failures: list[str]) -> None:
    """Note that the job of an experiment came to its end, with what failed in it."""
    _write(folder / f"{name}.json", failures)


def failures(folder: Path, name: str) -> list[str] | None:
    """Return what failed in the job of an experiment, or None before its end."""
    path = folder / f"{name}.json"
    return json.loads(path.read_bytes()) if path.exists() else None


def gather(folder: Path, options: Options) -> Iterator[tuple[str, Outcome]]:
    """Put the rows of each experiment's recording where `options.out` says, and yield what was put.

    Tables that grow get the rows added, and renewed tables are written anew, as if the recordings
    had been made there one after the other. A job that has not come to its end is left for a later
    call. Rows that were gathered before are there once.

    Raises: ValueError if `folder` has no submitted jobs and no recording that came to its end, or
    holds rows that may not stand in `data/`.
    """
    path = folder / SUBMITTED
    if not path.exists():
        yield from _carried(folder, options)
        return
    asked = json.loads(path.read_bytes())
    known = {"quick": asked["quick"], "only": asked["only"]}
    chosen = Options(out=options.out, replace=options.replace, **known)
    found = {name: experiment for name, experiment in discover().items() if name in asked["jobs"]}
    for experiment in found.values():
        check_place(experiment, chosen)
    for name, experiment in found.items():
        failed = failures(folder, name)
        if failed is None:
            words = f"job {asked['jobs'][name]} waits, runs or was killed: gather again later"
            yield name, Outcome(0, (), (words,))
        else:
            yield name, _put(folder / name, experiment, chosen, failed)


def _carried(folder: Path, options: Options) -> Iterator[tuple[str, Outcome]]:
    """Put the newest recording of each experiment that `record --out` brought to its end there."""
    newest = {row["experiment"]: row for row in durations.read(folder)}
    if not newest:
        filled = "a folder that `record --submit`, or `record --out` to its end, has filled"
        raise ValueError(f"gather = {folder}; allowed: {filled}")
    chosen = []
    for name, experiment in discover().items():
        if name in newest:
            part = newest[name]["cells"] < len(list(experiment.cells(options)))
            of = Options(out=options.out, replace=options.replace, only="a part" if part else "")
            check_place(experiment, of)
            chosen.append((experiment, of))
    for experiment, of in chosen:
        yield experiment.name, _put(folder, experiment, of, [])


def _put(folder: Path, experiment: Experiment, options: Options, failed: list[str]) -> Outcome:
    """Put the files of an experiment: its tables, files of another kind, and how long it took."""
    put, rows = Files(experiment, options), list[tuple[str, Row]]()
    for name in experiment.tables:
        if store.lying(folder / name):  # else no cell of this table was measured
            found = store.read(folder / name, described=False)
            rows += ((name, row) for row in found)
    took = [row for row in durations.read(folder) if row["experiment"] == experiment.name]
    put.put(rows, complete=bool(took))
    every = [name for of in discover().values() for name in of.tables]
    tables = {_stem(name) for name in (*every, durations.DATA_FILE)}
    described = (folder / files.DESCRIPTION).exists()
    for name in files.read_description(folder) if described else ():
        if _stem(name) not in tables:
            put.other(name).write_bytes((folder / name).read_bytes())
    noted = [durations.write(options.out, row, row["cells"], row["seconds"]) for row in took]
    datapackage.write(options.out, [*put.written, *noted])
    return Outcome(put.rows, tuple(put.written), tuple(failed))


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _write(path: Path, value: Any) -> None:
    files.replace(path, (json.dumps(value, indent=1) + "\n").encode())
