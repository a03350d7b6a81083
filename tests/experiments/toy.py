"""An experiment whose cells kill the process that measures them, as often as a file says."""

import os
import signal
import sys
import time
from pathlib import Path

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.sweep import record
from tests.experiments import conftest, test_harness

GROWS, RENEWED = test_harness.GROWS, test_harness.RENEWED
FACTS = {**conftest.FACTS, "sm_clock_mhz": 0, "power_w": 0}


class Toy(Experiment):
    """Goes to a worker as the name of a function of this module."""

    def __reduce__(self):
        return (alone if self.alone else beside), ()


def cells(options):
    return (Cell(f"cell {number}", number) for number in range(6))


def rows(cell, recording):
    deaths = recording.options.out / f"deaths of {cell.of}"
    if deaths.exists() and (left := int(deaths.read_text())):
        deaths.write_text(str(left - 1))
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.time()
    time.sleep(0.1)
    with (recording.options.out / "times").open("a") as file:
        file.write(f"{began} {time.time()}\n")
    for name, row in test_harness.rows(cell, recording):
        yield name, (row | FACTS if name == GROWS else row)


TABLES = test_harness.TOY.tables
ALONE, BESIDE = (
    Toy("toy", "A toy", TABLES, cells, rows, needs_gpu=False, renewed=(RENEWED,), alone=alone)
    for alone in (True, False)
)


def alone():
    return ALONE


def beside():
    return BESIDE


def options_in(folder):
    return Options(out=folder, seed=99, commit="abc1234", say=print)


if __name__ == "__main__":
    record(ALONE, options_in(Path(sys.argv[1])))
