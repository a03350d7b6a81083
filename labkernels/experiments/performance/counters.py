"""Profile how busy the parts of an SM are, for kernels, peers and a matrix product.

For every missed target, our kernel and the faster peer are also profiled on the target's workload.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.prefill.wgmma_fp8.spec import KERNEL as FP8
from labkernels.kernels.registry import discover
from labkernels.measure import ladder
from labkernels.measure.implementation import implementations
from labkernels.measure.peers.peer import peers_of
from labkernels.measure.profiling import counters
from labkernels.measure.profiling.child import (
    BACKWARD,
    DECODE,
    GEMM,
    PAGE_SIZE,
    PREFILL,
    PREFILL_FP8,
    Call,
)
from labkernels.measure.profiling.counters import Counted, Profile
from labkernels.records import parquet, profiles, schema
from labkernels.records.scoreboard import NOT_MET, Score, scoreboard
from labkernels.records.store import Row

DATA_FILE = "performance/counters.parquet"
MISSED_FILE = "performance/missed_targets.parquet"
HEAD_DIMS = (64, 128, 256)
CHANNELS, BATCH, LENGTH = 2048, 4, 4096
GEMM_ROWS = 8192
DECODE_BATCH, DECODE_HEADS = 64, 64
FA3 = "flashinfer_fa3"  # FlashAttention-3's algorithm for Hopper, in FlashInfer's own code
QUICK_METRICS = 3  # so few that the profiler reads them in one pass
UNITS = {metric.name: metric.unit for metric in counters.METRICS}


def calls(head_dim: int, *, quick: bool = False) -> list[Call]:
    """Return the calls to count at one head_dim; `quick` keeps their kernels, at 256 tokens."""
    batch, length = (1, 256) if quick else (BATCH, LENGTH)
    shape = {"batch": batch, "length": length, "heads": CHANNELS // head_dim, "head_dim": head_dim}
    names = {name: _kernels(name, head_dim) for name in (PREFILL, BACKWARD)}
    for operation, listed in names.items():
        peers = peers_of(operation).values()
        listed += [peer.name for peer in peers if peer.library == "torch" or peer.name == FA3]
    return [Call(name, of, **shape) for of, listed in names.items() for name in listed]


def groups(*, quick: bool = False) -> dict[str, list[Call]]:
    """Return the calls of each child process, by a name; `quick` keeps one head_dim, no ladder."""
    rows = 256 if quick else GEMM_ROWS
    found = {"gemm": [Call("cublas", GEMM, batch=0, length=rows, heads=0, head_dim=0)]}
    for head_dim, operation in product((128,) if quick else HEAD_DIMS, (PREFILL, BACKWARD)):
        listed = calls(head_dim, quick=quick)
        listed = [call for call in listed if call.operation == operation]
        found[f"d{head_dim} {operation}"] = listed
    ladders = {} if quick else {f"ladder {name}": rungs(name) for name in ladder.operations()}
    return found | ladders


def rungs(operation: str) -> list[Call]:
    """Return the call of each rung of a ladder, with the rung's kernel and tile."""
    shape = calls(ladder.HEAD_DIM)[0]
    if operation == DECODE:
        heads = {"heads": DECODE_HEADS, "group": ladder.DECODE_GROUP}
        shape = replace(shape, batch=DECODE_BATCH, **heads)
    return [
        replace(shape, operation=operation, name=rung.kernel, tile=rung.tile)
        for rung in ladder.rungs(operation)
    ]


def missed() -> dict[str, list[Call]]:
    """Return the calls of our kernel and the best peer of each missed target, by a group's name.

    The prefills that read pages are a group of their own, since their peers are other libraries;
    so are the experiments in 8 bits.
    """
    found: dict[str, list[Call]] = {}
    for score in scoreboard():
        operation = profiles.OPERATIONS.get(score.target.experiment)
        if operation and score.status == NOT_MET:
            paged = operation == PREFILL and score.target.workload["page_size"]
            of = f"{'paged ' if paged else ''}{operation}"
            of = score.target.experiment if "fp8" in score.target.experiment else of
            name = f"missed targets of {of}"
            listed = found.setdefault(name, [])
            listed += (call for call in _calls_of(score, operation) if call not in listed)
    return found


def _calls_of(score: Score, operation: str) -> Iterator[Call]:
    of = score.target.workload
    for row in score.sides:
        timed, more = str(row["kernel"]), {}
        name = timed.partition(" ")[0] if "fp8" in score.target.experiment else timed
        if name == FP8.name:
            more = {"operation": PREFILL_FP8, "tile": row["tile"], "policy": row["policy"]}
        kv_dtype, keys = profiles.cache_of(str(row["note"]))
        yield Call(
            name,
            **({"operation": operation} | more),
            timed=timed,
            kv_dtype=kv_dtype,
            keys_per_scale=keys,
            batch=of["batch"],
            length=of["kv_len"],
            heads=of["q_heads"],
            head_dim=of["head_dim"],
            causal=bool(of.get("causal", False)),
            dtype=score.dtype,
            group=of["q_heads"] // of["kv_heads"],
            page_size=of["page_size"],
        )


def cells(options: Options) -> Iterator[Cell]:
    """Yield each child process's calls, and the file that their counters go to.

    Without pyarrow, which reads the targets' rows, the missed ones are a cell that fails.
    """
    listed = [(DATA_FILE, group) for group in groups(quick=options.quick).items()]
    unknown = None
    try:
        listed += [] if options.quick else [(MISSED_FILE, group) for group in missed().items()]
    except parquet.Missing as error:
        unknown = error
    for file, (name, calls_of_it) in listed:
        yield Cell(f"{name}: {', '.join(map(_short, calls_of_it))}", (file, calls_of_it))
    if unknown:
        yield Cell("missed targets", unknown)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Read the counters of the kernels of a child's calls; `quick` reads a few counters."""
    if isinstance(cell.of, parquet.Missing):
        raise cell.of
    metrics = counters.METRICS[:QUICK_METRICS] if recording.options.quick else counters.METRICS
    file, listed = cell.of
    if any(call.name == FA3 for call in listed):
        recording.once(_build_peers)  # before the profiler, whose time is limited
    with recording.sampling():
        found = counters.profile(listed, metrics=metrics)
    for label, reason in found.failed.items():
        recording.fail(f"{label}: {reason}")
    recording.tell(f"{len(found.counted)} kernels counted, {len(found.refused)} refused")
    base = _base if file == DATA_FILE else _base_of_missed
    for row in rows_of(listed, found, base):
        yield file, row | {"repeats": 1}


def _build_peers(recording: Recording) -> dict[str, str]:
    """Compile FlashInfer's prefills for the head_dims of the recording's cells, side by side."""
    lists = [cell.of[1] for cell in recording.cells if isinstance(cell.of, tuple)]
    calls_of_it = (call for listed in lists for call in listed if call.name == FA3)
    return recording.build_peers(PREFILL, {(call.dtype, call.head_dim) for call in calls_of_it})


def rows_of(listed: list[Call], found: Profile, base: Callable[[Call], Row]) -> list[Row]:
    """Return a row for each counter of each kernel; note is the kernel's name on the GPU."""
    rows = [row for item in found.counted for row in _counted_rows(item, base)]
    for metric, words in (("refused", found.refused), ("failed", found.failed)):
        for call in listed:
            if call.label in words:
                rows.append(measured.reason_row(base(call), metric, words[call.label]))
    return rows


def _counted_rows(item: Counted, base_of: Callable[[Call], Row]) -> list[Row]:
    base = base_of(item.call) | {"note": item.function}
    return [
        measured.row(base, name, "exact", value, UNITS[name]) for name, value in item.values.items()
    ]


def kernel_column(call: Call) -> str:
    """Return the kernel column of a call; a peer's backward has a name other than its forward."""
    peer = call.operation == BACKWARD and call.name not in discover()
    return f"{call.name} backward" if peer else call.name


def _base_of_missed(call: Call) -> Row:
    """Return the columns of a missed target's call, equal to those of the timed rows."""
    columns = {"tile": "", "q_len": 1, "causal": False, "page_size": 0}
    if call.operation == PREFILL_FP8:
        how = {"kernel": call.timed, "backend": FP8.language, "tile": call.tile}
        how |= {"policy": call.policy, "tensor_cores": "on"}
        return columns | measured.base_row(call.workload, **how)
    implementation = implementations(call.operation)[call.name]
    kernel = profiles.cache_column(call.timed, call.kv_dtype, call.keys_per_scale)
    if not implementation.is_ours:
        kernel = profiles.peer_column(call.name, call.operation)
    return columns | measured.implementation_row(call.workload, implementation, kernel=kernel)


def _base(call: Call) -> Row:
    spec = discover().get(call.name)
    paged = call.operation == DECODE
    return {
        "kernel": kernel_column(call),
        "backend": spec.language if spec else _library(call),
        "tensor_cores": "off" if spec and not _on_tensor_cores(call) else "on",
        "tile": call.tile,
        "policy": spec.policies[0].label if spec else "",
        "batch": call.batch,
        "kv_len": call.length,
        "q_len": 1 if paged else call.length,
        "q_heads": call.heads,
        "kv_heads": call.heads // call.group,
        "head_dim": call.head_dim,
        "page_size": PAGE_SIZE if paged else 0,
        "causal": call.causal,
        "dtype": call.dtype,
    }


def _library(call: Call) -> str:
    """Return the library of a call that is not ours; torch makes cuBLAS's product."""
    known = peers_of(call.operation).get(call.name)
    return known.library if known else "torch"


def _on_tensor_cores(call: Call) -> bool:
    """Return whether a call's products run on tensor cores; a rung may differ from its kernel."""
    known = {(r.kernel, r.tile): r for name in ladder.operations() for r in ladder.rungs(name)}
    rung = known.get((call.name, call.tile))
    return rung.tensor_cores if rung else discover()[call.name].policies[0].tensor_cores


def _short(call: Call) -> str:
    return f"{call.name} {call.tile}" if call.tile else call.name


def _kernels(operation: str, head_dim: int) -> list[str]:
    return [
        name
        for name, spec in discover().items()
        if spec.operation == operation and head_dim in spec.head_dims and spec.language != "torch"
    ]


EXPERIMENT = Experiment(
    "counters",
    "Hardware counters of prefill, backward and a matrix product, by Nsight Compute",
    {DATA_FILE: schema.PREFILL_MEASUREMENTS, MISSED_FILE: schema.PREFILL_MEASUREMENTS},
    cells,
    rows,
    missing=lambda: counters.available(),
)
