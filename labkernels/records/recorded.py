"""The recorded run that a page shows, and the caption with its provenance."""

from collections.abc import Iterable, Mapping
from typing import Any

from labkernels.records import store
from labkernels.records.provenance import DIGITS
from labkernels.records.store import Row


def newest_with(rows: Iterable[Row], kernels: Iterable[str], where: Mapping[str, Any]) -> list[Row]:
    """Return all rows of the newest run that timed each of these kernels on one workload.

    A later run of a part of the grid therefore does not hide a whole one.
    Raises: ValueError if there is no such run.
    """
    rows, kernels = list(rows), set(kernels)
    for started in store.runs(rows):
        run = store.select(rows, {"started_utc": started})
        timed = store.select(run, {**where, "metric": "time_graph", "statistic": "median"})
        if kernels <= {row["kernel"] for row in timed}:
            return run
    raise ValueError(f"no recorded run timed all of {sorted(kernels)} on {dict(where)}")


def origin(rows: Iterable[Row]) -> str:
    """Return the words of a caption: "measured on NVIDIA H200, 2026-12-01, commit abc1234".

    Raises: ValueError unless the rows come from one run.
    """
    runs = {
        (row.get("gpu") or row["device"], row["started_utc"], _short(row), row.get("dirty"))
        for row in rows
    }
    if len(runs) != 1:
        raise ValueError(f"rows come from {len(runs)} runs, allowed: 1")
    gpu, started, commit, dirty = runs.pop()
    changes = " with changes" if dirty else ""
    return f"measured on {gpu}, {str(started)[:10]}, commit {commit}{changes}"


def newest_of_each(rows: Iterable[Row], columns: Iterable[str]) -> list[Row]:
    """Return, for every combination of these columns, the rows of the newest run that has it.

    A run of one kernel therefore replaces only the rows of that kernel.
    """
    rows, columns = list(rows), tuple(columns)
    newest: dict[tuple, str] = {}
    for row in rows:
        key = tuple(row[name] for name in columns)
        newest[key] = max(newest.get(key, ""), str(row["started_utc"]))
    return [
        row for row in rows if row["started_utc"] == newest[tuple(row[name] for name in columns)]
    ]


def origins(rows: Iterable[Row]) -> str:
    """Return the words of a caption for rows of several runs on one GPU, with every commit.

    Raises: ValueError unless the rows come from one GPU.
    """
    rows = list(rows)
    gpus = {str(row.get("gpu") or row["device"]) for row in rows}
    if len(gpus) != 1:
        raise ValueError(f"rows come from {sorted(gpus)}, allowed: one GPU")
    days = sorted({str(row["started_utc"])[:10] for row in rows})
    changes = (" with changes" if row.get("dirty") else "" for row in rows)
    commits = dict.fromkeys(_short(row) + said for row, said in zip(rows, changes, strict=True))
    word = "commit" if len(commits) == 1 else "commits"
    return f"measured on {gpus.pop()}, {' and '.join(days)}, {word} {', '.join(commits)}"


def _short(row: Row) -> str:
    """Return a row's commit in as many digits as rows have; some were recorded with all of them."""
    return str(row["commit"])[:DIGITS]
