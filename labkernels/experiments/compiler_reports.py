"""What the compiler makes of every CUDA kernel and tile on every architecture; needs no GPU."""

import functools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime

from labkernels.cuda import compile as nvrtc
from labkernels.experiments import Options, Outcome
from labkernels.kernels.spec import Instance
from labkernels.measure import resources
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row

NAME = "compiler_reports"
TITLE = "Registers and spills of every CUDA kernel, tile and architecture, by NVRTC"
DATA_FILE = "compiler_reports.csv"


def run(options: Options) -> Outcome:
    """Compile all instances for all architectures and write what ptxas reports, replacing the file.

    Raises: ValueError if there is no compiler, `only` names no instance, or part of the instances
    would replace the committed file.
    """
    reason = nvrtc.available()
    if reason:
        raise ValueError(f"{NAME} needs a compiler: {reason}")
    instances = [
        instance
        for instance in resources.all_instances()
        if options.only in f"{instance.kernel}/{instance.dtype}/d{instance.head_dim}"
    ]
    if not instances:
        raise ValueError(f"only is {options.only!r}, allowed: a part of decode_mma/bf16/d128")
    if options.quick:
        instances = instances[:1]
    partial = options.quick or options.only
    if partial and options.out == store.DATA_DIR:
        raise ValueError("out is data/, where the table must be whole; allowed: --out FOLDER")
    started_utc = provenance.utc_text(datetime.now(UTC))
    rows: list[Row] = []
    compiled = _compiled(instances, started_utc)
    for count, (instance, found) in enumerate(zip(instances, compiled, strict=True), 1):
        rows += found
        name = f"{instance.kernel} {instance.dtype} d{instance.head_dim} {instance.tile.label}"
        options.progress(f"{count}/{len(instances)} {name}, {instance.rows} rows")
    path = options.out / DATA_FILE
    store.replace(path, rows, schema.COMPILER_REPORTS)
    datapackage.write(options.out)
    return Outcome(len(rows), (path,))


def _compiled(instances: list[Instance], started_utc: str) -> Iterator[list[Row]]:
    """Yield each instance's rows, compiled on all cores."""
    job = functools.partial(resources.compiler_rows, started_utc=started_utc)
    batches = [[instance] for instance in instances]
    if len(batches) == 1:
        yield from map(job, batches)
        return
    # NVRTC compiles one program at a time in a process, so threads would not help.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(job, batches)
