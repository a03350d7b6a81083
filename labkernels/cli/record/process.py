"""A recording as a process of its own, and the signals that end a recording early."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkernels.experiments.experiment import Options


class Terminated(KeyboardInterrupt):
    """A signal of a scheduler, which ends a recording as Ctrl-C does."""


# At a job's time limit SLURM sends SIGTERM, and sbatch as submitit calls it SIGUSR2 before.
SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


def end_on_signals() -> None:
    """Have the first signal of a scheduler raise Terminated in this process."""
    for number in SIGNALS:
        signal.signal(number, _terminate)


def _terminate(number: int, frame: object) -> None:
    """Raise Terminated once: a second signal would interrupt the writing of the rows."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Terminated


def command(name: str, asked: Options) -> list[str]:
    """Return the command line that records one experiment with these options."""
    words = [sys.executable, "-m", "labkernels", "record", name, "--out", str(asked.out)]
    words += ["--repeats", str(asked.repeats), "--seed", str(asked.seed)]
    words += ["--only", asked.only, "--commit", asked.commit, "--scheduler", asked.scheduler]
    return words + ["--quick"] * asked.quick + ["--replace"] * asked.replace


def in_a_process(words: list[str]) -> list[str]:
    """Run such a command line as a child, and return the failures that it reports."""
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as child:
        lines = []
        try:
            for line in child.stderr:
                print(line, end="", file=sys.stderr, flush=True)
                lines.append(line.strip())
        except KeyboardInterrupt as how:  # a terminal sends Ctrl-C to the child, too
            if isinstance(how, Terminated):
                child.terminate()
            child.wait()  # until it has written what it measured
            raise
    said = [line.removeprefix("failed: ") for line in lines if line.startswith("failed: ")]
    if child.returncode and not said:
        last = lines[-1].removeprefix("labkernels: ") if lines else "no message"
        said = [last if child.returncode > 0 else f"ended by signal {-child.returncode}: {last}"]
    return said
