"""`labkernels record --submit` and `--gather`: an experiment as a job of a scheduler."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkernels.cli.options import DONE, FAILED
from labkernels.cli.record.process import command, end_on_signals, in_a_process

if TYPE_CHECKING:
    from labkernels.experiments.experiment import Experiment, Options

UNKNOWN_MINUTES = 60  # of a job whose experiment was never recorded
POLL_S = 1.0


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add where jobs leave their rows, and what the scheduler is asked for."""
    jobs = sub.add_argument_group("jobs of a scheduler")
    jobs.add_argument("--submit", type=Path, metavar="FOLDER", help="record by jobs, into FOLDER")
    jobs.add_argument("--gather", type=Path, metavar="FOLDER", help="put rows made elsewhere")
    jobs.add_argument("--partition", default=None, help="SLURM's partition (default: SLURM's own)")
    minutes = "time limit of a job (default: twice its last recording, and ten minutes)"
    jobs.add_argument("--minutes", type=int, default=None, help=minutes)
    jobs.add_argument("--no-wait", action="store_true", help="return when the jobs are submitted")
    jobs.add_argument("--local", action="store_true", help="run the jobs on this machine")


def minutes_of(experiment: Experiment, asked: Options) -> int:
    """Return the time limit of an experiment's job: twice its last recording, and ten minutes."""
    from labkernels.experiments import durations

    cells = len(experiment.chosen(asked))
    seconds = durations.estimate(experiment.name, cells, durations.read())
    return UNKNOWN_MINUTES if seconds is None else math.ceil(2 * seconds / 60) + 10


def submit(experiments: list[Experiment], asked: Options, options: argparse.Namespace) -> int:
    """Submit a job for each experiment, and wait for them unless it is not wanted.

    Raises: ValueError if submitit is missing, if the folder has jobs already, or if local jobs
    should not be waited for.
    """
    from labkernels.experiments import jobs

    folder = options.submit.absolute()
    local = options.local or shutil.which("srun") is None
    if options.out is not None:
        raise ValueError(f"out = {options.out} beside submit; allowed: out beside gather")
    if local and options.no_wait:
        raise ValueError("no-wait is on, and there is no SLURM here or local is on; allowed: wait")
    if (folder / jobs.SUBMITTED).exists():
        raise ValueError(
            f"submit = {options.submit}, which has jobs already; allowed: a new folder"
        )
    executor = _executor(folder, "local" if local else "slurm")
    folder.mkdir(parents=True, exist_ok=True)
    running: dict[str, Any] = {}
    for experiment in experiments:
        limit = options.minutes or minutes_of(experiment, asked)
        named = {"name": f"labkernels-{experiment.name}", "timeout_min": limit}
        executor.update_parameters(
            **named, nodes=1, tasks_per_node=1, gpus_per_node=1, slurm_partition=options.partition
        )
        own = replace(asked, out=folder / experiment.name)
        job = executor.submit(measure, folder, experiment.name, command(experiment.name, own))
        running[experiment.name] = job
        jobs.submitted(folder, {name: each.job_id for name, each in running.items()}, asked)
        print(f"{experiment.name}: job {job.job_id}, at most {limit} min", flush=True)
        if local:  # one after the other, since they share this machine's GPU
            _wait(folder, {experiment.name: job})
    if not options.no_wait:
        _wait(folder, running)
    print(f"`labkernels record --gather {options.submit}` puts the rows into data/")
    if options.no_wait:
        return DONE
    failed = [f"{name}: {words}" for name in running for words in jobs.failures(folder, name) or ()]
    return _told(failed)


def measure(folder: Path, name: str, words: list[str]) -> None:
    """Record one experiment, as the work of a job, and note what failed."""
    from labkernels.experiments import jobs

    end_on_signals()
    try:
        failures = in_a_process(words)
    except KeyboardInterrupt:
        failures = ["ended by a signal; what was measured before is kept"]
    jobs.ended(folder, name, failures)


def gather(folder: Path, asked: Options) -> int:
    """Put rows of jobs or of another machine into the data folder, and say what failed in jobs."""
    from labkernels.experiments import jobs

    failed = []
    for name, outcome in jobs.gather(folder, asked):
        print(f"{name}: {outcome.rows} rows", flush=True)
        failed += [f"{name}: {words}" for words in outcome.failures]
    return _told(failed)


def _told(failed: list[str]) -> int:
    for words in failed:
        print(f"failed: {words}", file=sys.stderr)
    return FAILED if failed else DONE


def _executor(folder: Path, cluster: str) -> Any:
    try:
        import submitit
    except ImportError:
        mend = "pip install 'labkernels[cluster]'"
        raise ValueError(f"submit needs submitit, which is not installed: {mend}") from None
    return submitit.AutoExecutor(folder / "jobs", cluster=cluster)


def _wait(folder: Path, running: Mapping[str, Any]) -> None:
    """Wait until every job is done; one without an end is noted with the state of its job."""
    from tqdm import tqdm

    from labkernels.experiments import jobs

    left = dict(running)
    with tqdm(total=len(left), unit="job", disable=None) as bar:
        while left:
            for name, job in list(left.items()):
                if not job.done():
                    continue
                if jobs.failures(folder, name) is None:
                    jobs.ended(folder, name, [f"job {job.job_id} was ended: {job.state}"])
                del left[name]
                bar.update()
            time.sleep(POLL_S if left else 0)
