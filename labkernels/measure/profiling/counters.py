"""Hardware counters of GPU kernels by Nsight Compute: how busy each part of an SM was.

The profiler runs a child process, and counts one run of each of its calls. A kernel is replayed
until all counters are read. Clocks are left unchanged, and caches are emptied before each replay.
"""

import csv
import io
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkernels.measure.profiling import child
from labkernels.measure.profiling.child import Call

TIMEOUT_S = 300
_USUAL_PLACE = "/usr/local/cuda/bin/ncu"
_NO_PERMISSION = "ERR_NVGPUCTRPERM"
_RANGES = ("Start/Stop_Range", "Push/Pop_Range")  # columns of the ranges that a kernel ran in
_SCALES = {"ns": (1e-9, "s"), "us": (1e-6, "s"), "ms": (1e-3, "s"), "hz": (1.0, "Hz")}


@dataclass(frozen=True)
class Metric:
    """One counter: its name in the lab, its name in Nsight Compute, its unit, and its meaning."""

    name: str
    ncu: str
    unit: str
    meaning: str


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
METRICS = tuple(Metric(name, **facts) for name, facts in _TABLE.items())


@dataclass(frozen=True)
class Counted:
    """The counters of one kernel that a call launched, by metric name.

    Units: those of METRICS; "time" is in seconds. function: the kernel's name on the GPU.
    """

    call: Call
    function: str
    values: dict[str, float]


@dataclass(frozen=True)
class Profile:
    """The profiler's counters, and by label the reasons why other calls have none.

    refused: the kernel does not support the call. failed: its output is wrong.
    """

    counted: tuple[Counted, ...]
    refused: dict[str, str]
    failed: dict[str, str]


def available() -> str | None:
    """Return None if Nsight Compute is installed, else the reason."""
    if _tool() is None:
        return f"ncu is neither on the PATH nor {_USUAL_PLACE}: install NVIDIA Nsight Compute"
    return None


def profile(calls: Iterable[Call], *, metrics: Iterable[Metric] = METRICS) -> Profile:
    """Count the work of each call's kernels, in one child process on the current GPU.

    Raises: RuntimeError if there is no profiler, it has no permission to read counters, or it
    fails.
    """
    calls, metrics = list(calls), list(metrics)
    reason = available()
    if reason:
        raise RuntimeError(reason)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        done = _run(_command(log, metrics), child.to_json(calls))
        text = log.read_text(encoding="utf-8") if log.exists() else ""
    if done.returncode != 0 or "==ERROR==" in text:
        raise RuntimeError(_failure(f"{text}\n{done.stdout}\n{done.stderr}"))
    refused, failed = (_said(word, done.stdout) for word in ("refused", "failed"))
    found = parse(text, metrics)
    labelled = {call.label: call for call in calls}
    foreign = [function for label, function, _ in found if label not in labelled]
    if foreign:
        raise RuntimeError(f"ncu counted a kernel outside of every call: {foreign[0]}")
    rows = [Counted(labelled[name], *rest) for name, *rest in found if name not in failed]
    return Profile(tuple(rows), refused, failed)


def parse(text: str, metrics: Iterable[Metric]) -> list[tuple[str, str, dict[str, float]]]:
    """Read the profiler's table: (range, function, values by metric name) for each kernel.

    A counter whose cell is empty is left out; times are in seconds.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    header, units, *rows = csv.reader(io.StringIO("\n".join(lines[start:])))
    columns = [i for i, name in enumerate(header) if any(kind in name for kind in _RANGES)]
    named = {metric.name: header.index(metric.ncu) for metric in metrics if metric.ncu in header}
    found = []
    for row in (row for row in rows if len(row) == len(header)):  # other lines are messages
        values = {name: _number(row[i], units[i]) for name, i in named.items() if row[i].strip()}
        label = "".join(_label(row[i]) for i in columns)
        found.append((label, row[header.index("Kernel Name")], values))
    return found


def _command(log: Path, metrics: list[Metric]) -> list[str]:
    return [
        _tool(),
        "--clock-control=none",
        "--profile-from-start=off",
        "--nvtx",
        "--csv",
        "--page=raw",
        "--print-units=base",
        f"--log-file={log}",
        f"--metrics={','.join(metric.ncu for metric in metrics)}",
        sys.executable,
        "-m",
        "labkernels.measure.profiling.child",
    ]


def _run(command: list[str], calls: str) -> subprocess.CompletedProcess:
    paths = (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        return subprocess.run(
            command,
            input=calls,
            capture_output=True,
            text=True,
            env=environment,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"ncu took more than {TIMEOUT_S} s, and was stopped") from None


def _said(word: str, text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line.startswith(f"{word} ")]
    return dict(line.removeprefix(f"{word} ").split(": ", 1) for line in lines)


def _failure(text: str) -> str:
    if _NO_PERMISSION in text:
        return (
            f"the driver does not let this user read counters ({_NO_PERMISSION}): run as root, or"
            " load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "==ERROR==" in line or "Error" in line]
    return f"ncu failed: {(errors or lines or ['it printed nothing'])[-1]}"


def _tool() -> str | None:
    return shutil.which("ncu") or shutil.which(_USUAL_PLACE)


def _label(cell: str) -> str:
    """Return the name in a cell such as `12 "<default domain>:gemm/...:none:none:none"`."""
    return cell.partition("<default domain>:")[2].partition(":")[0]


def _number(text: str, unit: str) -> float:
    return float(text.replace(",", "")) * _SCALES.get(unit, (1.0, ""))[0]
