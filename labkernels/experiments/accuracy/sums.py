"""All-reduces by NCCL as it chooses, and by each algorithm, protocol and number of channels.

A process reads what NCCL is told once, so that each setting has ranks of its own. The sums are held
against sums in the order that a probe sees, and against themselves again. NCCL says in its log what
it used.
"""

import itertools
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from labkernels.distributed import on_gpus
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.performance import ranks as performance
from labkernels.kernels.random_inputs import DTYPES
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/sums.csv"
NAMES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
ASKED = ((), *itertools.product(("Ring", "Tree"), ("Simple", "LL", "LL128"), ("1", "4", "32")))
SIZES = (4096, 10**6, 2**28)  # bytes
QUICK = (4096,)
KINDS = DTYPES | {"fp32": torch.float32}
REPEATS = 10
USED = re.compile(r"AllReduce: .*Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")


def cells(options: Options) -> Iterator[Cell]:
    """Yield what NCCL is told; `quick` has its own choice, and one other."""
    for asked in (ASKED[0], ASKED[-1]) if options.quick else ASKED:
        yield Cell(f"{' '.join(asked)} channels" if asked else "as NCCL chooses", asked)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Run the ranks of a cell, one on each GPU."""
    asked, sizes = cell.of, QUICK if recording.options.quick else SIZES
    with tempfile.TemporaryDirectory() as folder:
        told = dict(zip(NAMES, (*asked, *asked[2:]), strict=False))
        told |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING"}
        told |= {"NCCL_DEBUG_FILE": f"{folder}/%p"}
        given = (torch.cuda.device_count(), sizes, recording.options.seed, "cuda")
        found = on_gpus(on_rank, *given, timeout_s=performance.TIMEOUT_S, **told)
    for row in performance.together(found):
        yield DATA_FILE, row | performance.versions() | {"asked": " ".join(asked)}
        how = f"{row['algorithm']} {row['protocol']} {row['channels']}"
        recording.tell(f"{row['dtype']} {how}, {row['other']} other")


def on_rank(ranks, sizes: tuple[int, ...], seed: int, device: str) -> list[Row]:
    """Return the rows of one rank. Units: sizes in bytes"""
    found = []
    for n_bytes, (dtype, kind) in itertools.product(sizes, KINDS.items()):
        draws = [torch.Generator(device).manual_seed(seed + rank) for rank in range(ranks.size)]
        given = {"device": device, "dtype": kind}
        parts = [torch.randn(n_bytes // kind.itemsize, generator=x, **given) for x in draws]

        def together(part=parts[ranks.rank]) -> torch.Tensor:
            total = part.clone()
            dist.all_reduce(total, group=ranks.group)
            return total

        first = together()
        row: Row = {"ranks": ranks.size, "numbers": len(first), "dtype": dtype, **used()}
        row |= performance.differing(first, performance.added(ranks, parts), first)
        found.append(row | {"unstable": performance.unstable(together, first, REPEATS)})
    return found


def used() -> Row:
    """Return what NCCL said of this process's last sum; empty where it said nothing."""
    log = Path(os.environ.get("NCCL_DEBUG_FILE", os.devnull).replace("%p", f"{os.getpid()}"))
    said = USED.findall(log.read_text()) if log.exists() else []
    algorithm, protocol, low, high = said[-1] if said else ("", "", "", "")
    channels = int(high) - int(low) + 1 if said else ""
    return {"algorithm": algorithm, "protocol": protocol, "channels": channels}


EXPERIMENT = Experiment(
    "sums",
    "All-reduces of two GPUs or more by each algorithm, protocol and number of channels of NCCL",
    {DATA_FILE: schema.TABLES["sums"]},
    cells,
    rows,
    missing=performance.missing,
    renewed=(DATA_FILE,),
)
