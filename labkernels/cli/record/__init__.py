"""`labkernels record`: measure experiments and write their rows to data/."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from labkernels.cli.options import DONE, FAILED, add_scheduler
from labkernels.cli.record import jobs
from labkernels.cli.record.process import command, end_on_signals, in_a_process

if TYPE_CHECKING:
    from labkernels.experiments.experiment import Experiment, Options

HELP = "measure an experiment on a GPU"
DESCRIPTION = """\
Measure an experiment and write its rows, with their provenance, to data/.

An experiment is a grid of cells. --only picks cells by a part of their labels, which --list shows;
a bar stands between alternatives. Before it starts, it says how long it took when it was last
recorded; --list says that of every experiment.

examples:
  labkernels record --list                              the experiments, and how long each takes
  labkernels record decode_tensor_cores --list          the cells of one
  labkernels record decode_tensor_cores
  labkernels record prefill --only 'd128, causal|page 16'
  labkernels record decode_tensor_cores --quick --out /tmp/rows
  labkernels record --all --replace                     all of them, in fresh files
  labkernels record --all --submit jobs                 a job of SLURM for each of them
  labkernels record --gather jobs                       put the rows of these jobs into data/
  labkernels record --gather rows                       the same for rows of another machine's --out
  labkernels record --describe                          refresh data/datapackage.json alone

--all gives each experiment a process of its own, so that one that fails leaves the others; what
failed is said again at the end.

--submit hands each experiment to SLURM as a job with one GPU, says the jobs' numbers and waits for
them (--no-wait: returns). An experiment and its peers stay in one process on one GPU, since only
times of one run are compared. Where there is no SLURM, or with --local, the jobs run here, one
after the other. FOLDER has to be one that all machines see. It needs labkernels[cluster].
--gather also takes a folder that --out filled on another machine, of recordings that came to
their end.

--scheduler lets Dask's workers measure the cells, one worker for each GPU; they need this commit.
Ctrl-C, or the SIGTERM of a scheduler at the end of a job's time, keeps what was measured; the same
command then measures the cells that are left.
Without pyarrow the Parquet file of a large table is a CSV file in FOLDER; --gather puts its rows
into the Parquet file.

exit codes: 0 all was recorded; 1 something failed, as said at the end; 2 the request was wrong;
130 it was interrupted.
"""


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the experiment, how much of it to record, and where."""
    sub.add_argument("experiment", nargs="?", default="", help="name of one experiment")
    sub.add_argument("--all", action="store_true", help="every experiment")
    sub.add_argument("--list", action="store_true", help="list experiments, or cells of one")
    sub.add_argument("--describe", action="store_true", help="refresh datapackage.json and stop")
    sub.add_argument("--only", default="", help="only cells whose label holds TEXT, or TEXT|TEXT")
    sub.add_argument("--repeats", type=int, default=50, help="timed repeats (default 50)")
    sub.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    sub.add_argument("--out", type=Path, default=None, help="folder to write to (default data/)")
    sub.add_argument("--quick", action="store_true", help="tiny workloads, to try the command")
    sub.add_argument("--replace", action="store_true", help="begin the data file again")
    sub.add_argument("--commit", default="", help="commit of the source, where there is no git")
    add_scheduler(sub)
    jobs.add_options(sub)


def run(options: argparse.Namespace) -> int:
    """List, describe or record."""
    from labkernels import experiments
    from labkernels.records import datapackage

    asked = _asked(options)
    if options.describe:
        print(datapackage.write(asked.out))
        return DONE
    if options.list:
        found = experiments.find(options.experiment) if options.experiment else None
        cells = found and [cell.label for cell in found.chosen(asked)]
        print("\n".join(cells or _experiments(asked)))
        return DONE
    if options.gather:
        return jobs.gather(options.gather, asked)
    if bool(options.experiment) == options.all:
        known = ", ".join(experiments.discover())
        raise ValueError(f"experiment is missing; allowed: {known}, or --all")
    if options.submit:
        names = experiments.discover() if options.all else [options.experiment]
        chosen = [experiments.find(name) for name in names]
        return jobs.submit([each for each in chosen if _cells(each, asked)], asked, options)
    end_on_signals()
    if options.all:
        return _record_all(asked)
    return _record_one(experiments.find(options.experiment), asked)


def _asked(options: argparse.Namespace) -> Options:
    from labkernels import places
    from labkernels.experiments.experiment import Options

    out = places.DATA if options.out is None else options.out
    reads = options.list or options.submit
    if options.commit and not re.fullmatch(r"[0-9a-f]{7,40}", options.commit):
        raise ValueError(f"commit = {options.commit!r}, allowed: 7 to 40 digits of a git commit")
    if out == places.DATA and places.CHECKOUT is None and not reads:
        raise ValueError(f"out = {out} belongs to the installed package; allowed: another folder")
    return Options(
        out=out,
        repeats=options.repeats,
        seed=options.seed,
        quick=options.quick,
        only=options.only,
        replace=options.replace,
        commit=options.commit,
        scheduler=options.scheduler,
        say=lambda line: print(line, flush=True),
    )


def _experiments(asked: Options) -> list[str]:
    """Return a line per experiment with picked cells, their time and its title, and the total."""
    from labkernels import experiments
    from labkernels.experiments import durations

    rows, lines, total, unknown = durations.read(), [], 0.0, 0
    for name, experiment in experiments.discover().items():
        cells = _cells(experiment, asked)
        if not cells:
            continue
        seconds = durations.estimate(name, cells, rows)
        total, unknown = total + (seconds or 0.0), unknown + (seconds is None)
        took = f"{cells} cells, {durations.words(seconds)}"
        lines.append(f"{name:<24}{took:<32}{experiment.title}")
    if total:
        more = f", and {unknown} not yet measured" if unknown else ""
        lines.append(f"together {durations.words(total)}{more}")
    return lines


def _cells(experiment: Experiment, asked: Options) -> int:
    """Return how many cells of an experiment are picked."""
    return sum(asked.picks(cell.label) for cell in experiment.cells(asked))


def _record_one(experiment: Experiment, asked: Options) -> int:
    from labkernels.experiments.sweep import record

    outcome = record(experiment, asked)
    files = ", ".join(str(path) for path in outcome.files)
    print(f"{experiment.name}: {outcome.rows} rows in {files or 'no file'}", flush=True)
    for failure in outcome.failures:
        print(f"failed: {failure}", file=sys.stderr)
    return FAILED if outcome.failures else DONE


def _record_all(asked: Options) -> int:
    """Record each experiment in a separate process, also after one has failed."""
    from labkernels import experiments

    lines = _experiments(asked)
    print("\n".join(lines), flush=True)
    named = {line.split()[0] for line in lines}
    failures = []
    for name in experiments.discover():
        if name in named:
            print(f"\n{name}", flush=True)
            failures += [f"{name}: {words}" for words in in_a_process(command(name, asked))]
    print("", flush=True)
    for words in failures:
        print(f"failed: {words}", file=sys.stderr)
    return FAILED if failures else DONE
