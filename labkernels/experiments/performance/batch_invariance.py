"""The price of bits that do not depend on the batch: each plan that looks at it, beside one that
does not, on the grids of decode, prefill and MLA and on smaller batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.performance import decode_tensor_cores, mla, prefill
from labkernels.kernels.decode.operation import OPERATION as DECODE
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.operation import OPERATION as MLA
from labkernels.kernels.operation import Operation
from labkernels.kernels.prefill.operation import OPERATION as PREFILL
from labkernels.measure.implementation import Implementation, prepared
from labkernels.policy import TENSOR_CORES
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE = "performance/batch_invariance.parquet"
FREE, INVARIANT = "free", "invariant"
# Requests and keys; splits become longer just after 2048 keys.
SMALL_BATCHES = (
    *((1, 1024), (1, 2304), (1, 4096), (1, 8192)),
    *((4, 2048), (16, 2048), (4, 32768), (8, 8192)),
)
# Splits of one size, to show what another one would cost and save; the last one is no split.
KEYS = (256, 512, 1024, 2048, 4096, 2**20)
MLA_KEYS = (256, 512, 2048, 4096)
PAGE_SIZE = 16  # of the paged prefills; the cut does not depend on it


@dataclass(frozen=True)
class Priced:
    """A workload, why it is there, and the options of each plan."""

    operation: Operation
    workload: Any
    why: str
    plans: dict[str, dict]


def grid(*, quick: bool = False) -> Iterator[Priced]:
    """Yield the workloads; those of decode and MLA have splits of one size, too."""
    both = {FREE: {}, INVARIANT: {"batch_invariant": True}}
    sizes, of_mla = (
        {f"{keys} keys": {"keys_per_split": keys} for keys in listed} for listed in (KEYS, MLA_KEYS)
    )
    for cell in decode_tensor_cores.grid(quick=quick):
        yield Priced(DECODE, cell.workload, "grid", both | sizes)
    for batch, keys in SMALL_BATCHES[:1] if quick else SMALL_BATCHES:
        work = Decode.uniform(
            batch, keys, q_heads=32, kv_heads=8, head_dim=128, page_size=16, dtype="bf16"
        )
        yield Priced(DECODE, work, "small batch", both | sizes)
    for cell in prefill.grid(quick=quick):
        if cell.workload.page_size in (None, PAGE_SIZE):
            yield Priced(PREFILL, cell.workload, "grid", both)
    for cell in mla.grid(quick=quick):
        if cell.why in ("speed", "small batch"):
            yield Priced(MLA, cell.workload, "grid", both | of_mla)


def cells(options: Options) -> Iterator[Cell]:
    """Yield the workloads of the grid, each once."""
    once: set = set()
    for priced in grid(quick=options.quick):
        if priced.workload not in once:
            once.add(priced.workload)
            yield Cell(f"{priced.operation.name} {priced.workload.label} ({priced.why})", priced)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Measure the plans of a workload in turns."""
    of: Priced = cell.of
    chosen = [_implementation(of.operation, name, how) for name, how in of.plans.items()]
    result = recording.benchmark(of.operation, of.workload, chosen, graph=True)
    times = {item.name: item.times.median_s for item in result.measured.values()}
    recording.tell(", ".join(f"{name} {format_time(time)}" for name, time in times.items()))
    for item in result.measured.values():
        plan = item.step.plan
        base: Row = {"q_len": 1, "causal": False}
        base |= measured.implementation_row(
            of.workload, item.implementation, kernel=plan.kernel, plan=plan
        )
        base |= {"note": f"{item.name}, {of.why}"}
        yield from ((DATA_FILE, row) for row in measured.graph_rows(base, item.times))
        yield from ((DATA_FILE, row) for row in measured.plan_rows(base, plan))


def _implementation(operation: Operation, name: str, how: dict) -> Implementation:
    """Return a plan of the operation's own choice of kernel as an implementation."""
    return Implementation(
        name=name,
        kernel=name,
        library="cuda",
        policy=TENSOR_CORES,
        label=TENSOR_CORES.label,
        prepare=partial(prepared, operation, **how),
    )


EXPERIMENT = Experiment(
    "batch_invariance",
    "The price of batch invariance: plans that look at the batch, and plans that do not",
    {DATA_FILE: schema.PREFILL_MEASUREMENTS},
    cells,
    rows,
)
