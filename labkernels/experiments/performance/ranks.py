"""Attention and sums over GPUs of one machine: their times, and outputs with other bits.

The ranks speak by NCCL. Attention is held against the same parts in one process, and its time
against one GPU with all keys; a sum is held against sums in the order that a probe sees. A ring is
called anew each time, run again, and captured. The control is a decode whose heads are split over
ranks: each multiplies its heads by its part of the output projection, and an all-reduce adds.
"""

import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkernels import distributed
from labkernels.distributed.decode import CARRIES, MERGES
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.backward.api import backward_step
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.decode.api import decode_step
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.api import prefill
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import DTYPES, Normal
from labkernels.measure import timing
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE, SUMS_FILE = "performance/ranks.csv", "accuracy/sums.parquet"
DTYPE = "bf16"
TIMEOUT_S = 120.0  # a first call compiles kernels and joins the ranks
REPLAYS = 10  # of a graph, between two events
RING_TOKENS = 2**16  # that rings run through between two events
REPEATS = 100  # of an all-reduce, whose bits are compared
SUMS = DTYPES | {"fp32": torch.float32}
SUM_BYTES, SUM_REPEATS = (4096, 10**6, 2**28), 10
TOLD = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
ASKED = ((), *itertools.product(("Ring", "Tree"), ("Simple", "LL", "LL128"), ("1", "4", "32")))
SAID = re.compile(r"AllReduce: .*Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class Shared:
    """What the ranks compute together. keys: of each request."""

    operation: str
    batch: int
    keys: int
    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128

    @property
    def heads(self) -> dict[str, int]:
        """The heads of attention, by the names of columns and workloads."""
        return {name: getattr(self, name) for name in ("q_heads", "kv_heads", "head_dim")}


GRID = (
    *(Shared("decode", 57, 8192), Shared("decode", 1, 131072, 64), Shared("decode", 1, 2**20, 64)),
    *(Shared(name, 1, n) for name in ("prefill", "backward") for n in (8192, 65536)),
    Shared("projection", 57, 8192),
)
SMALL = {"q_heads": 8, "kv_heads": 4, "head_dim": 64}
QUICK = (
    *(Shared(name, 2, 200, **SMALL) for name in ("decode", "projection")),
    *(Shared(name, 1, 64, **SMALL) for name in ("prefill", "backward")),
)


def cells(options: Options) -> Iterator[Cell]:
    """Yield what is shared, and what NCCL is told for sums; `quick` has tiny shapes."""
    for of in QUICK if options.quick else GRID:
        heads = f"{of.q_heads}/{of.kv_heads}, d{of.head_dim}"
        yield Cell(f"{of.operation} {of.batch} x {of.keys}, {heads}", of)
    for asked in ASKED[:: len(ASKED) - 1] if options.quick else ASKED:
        yield Cell(f"sum, {' '.join(asked) + ' channels' if asked else 'as NCCL chooses'}", asked)


def missing() -> str | None:
    """Return why the ranks cannot run here, or None."""
    found = torch.cuda.device_count()
    return None if found > 1 else f"it needs two GPUs of one machine, here are {found}"


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Run the ranks of a cell, one on each GPU."""
    n, seed, nccl = torch.cuda.device_count(), recording.options.seed, torch.cuda.nccl.version()
    version = {"nccl": ".".join(map(str, nccl))}
    if isinstance(cell.of, Shared):
        found = distributed.on_gpus(on_rank, n, cell.of, seed, "cuda", timeout_s=TIMEOUT_S)
        for row in together(found):
            yield DATA_FILE, row | version
            time = f" {format_time(row['time'])}" if row["time"] else ""
            recording.tell(f"{row['way']} {row['carry']}{time}, {row['other']} other")
        return
    with tempfile.TemporaryDirectory() as folder:
        told = dict(zip(TOLD, (*cell.of, *cell.of[2:]), strict=False))
        told |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING"}
        told |= {"NCCL_DEBUG_FILE": f"{folder}/%p"}
        sizes = SUM_BYTES[: 1 if recording.options.quick else None]
        found = distributed.on_gpus(sums, n, sizes, seed, "cuda", timeout_s=TIMEOUT_S, **told)
    for row in together(found):
        yield SUMS_FILE, row | version | {"asked": " ".join(cell.of)}
        used = f"{row['algorithm']} {row['protocol']} {row['channels']}"
        recording.tell(f"{row['dtype']} {used}, {row['other']} other")


def together(found: list[list[Row]]) -> Iterator[Row]:
    """Yield the rows of all ranks as one: the longest time, and all outputs."""
    for of_ranks in zip(*found, strict=True):
        row: dict[str, Any] = dict(of_ranks[0])
        row |= {name: sum(x[name] for x in of_ranks) for name in ("outputs", "other", "unstable")}
        if row.get("time"):
            row["time"] = max(x["time"] for x in of_ranks)
        yield row


def on_rank(ranks, of: Shared, seed: int, device: str) -> list[Row]:
    """Return the rows of one rank."""
    runs = {"decode": _decode, "prefill": _ring, "backward": _ring, "projection": _projection}
    base: Row = {"operation": of.operation, "ranks": ranks.size, "batch": of.batch}
    base |= {"keys": of.keys, "dtype": DTYPE, "time": "", "carry": ""} | of.heads
    none = {"outputs": 0, "other": 0, "unstable": 0}
    return [base | none | row for row in runs[of.operation](ranks, of, seed, device)]


def _decode(ranks, of: Shared, seed: int, device: str) -> Iterator[Row]:
    work = Decode.uniform(of.batch, of.keys, **of.heads, dtype=DTYPE)
    q, cache = decode_inputs(work, Normal(seed, device)).arguments
    yield {"way": "one GPU", "time": _seconds(decode_step(q, cache).run, ranks, device)}
    own = distributed.shard(cache, ranks.rank, ranks.size)
    mine = _share(of.q_heads, ranks.rank, ranks.size)
    for way, fixed in (("a part, free splits", False), ("a part", True)):
        part_step = decode_step(q, own, batch_invariant=fixed)
        yield {"way": way, "time": _seconds(part_step.run, ranks, device)}
    for carry in CARRIES:
        want = distributed.decode_in_parts(q, cache, ranks.size, carry=carry).outputs().out
        for merge in MERGES:
            step = distributed.context_parallel_decode(q, own, ranks, merge=merge, carry=carry)
            first = step.outputs().out.clone()
            step.run()
            part = want if merge == "gather" else want[:, mine]
            row: Row = {"way": merge, "carry": carry, **_differing(first, part, step.outputs().out)}
            yield row | {"time": _seconds(step.run, ranks, device)}


def _share(heads: int, rank: int, ranks: int) -> slice:
    return slice(rank * heads // ranks, (rank + 1) * heads // ranks)


def _projection(ranks, of: Shared, seed: int, device: str) -> Iterator[Row]:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # fp32 to the end
    draw, width = Normal(seed, device), of.q_heads * of.head_dim
    work = Decode.uniform(of.batch, of.keys, **of.heads, dtype=DTYPE)
    q, cache = decode_inputs(work, draw).arguments
    weight = draw.tensor(DTYPE, width, width) / width**0.5

    def part_of(rank: int, ranks: int, to: torch.dtype) -> Callable[[], torch.Tensor]:
        heads, keys, rows = (_share(n, rank, ranks) for n in (of.q_heads, of.kv_heads, width))
        kv = PagedKV(cache.k[:, :, keys], cache.v[:, :, keys], cache.page_table, cache.kv_len)
        step, by = decode_step(q[:, heads], kv), weight[rows].to(to)

        def run() -> torch.Tensor:
            step.run()
            return step.out.flatten(1).to(to) @ by

        return run

    for carry in CARRIES:
        to = torch.float32 if carry == "fp32" else q.dtype
        parts = [part_of(rank, ranks.size, to) for rank in range(ranks.size)]

        def together(part=parts[ranks.rank]) -> torch.Tensor:
            total = part()
            dist.all_reduce(total, group=ranks.group)
            return total

        yield {"way": "one GPU", "carry": carry, "time": _seconds(part_of(0, 1, to), ranks, device)}
        first, want = together(), _added(ranks, [part() for part in parts])
        row: Row = {"way": "all-reduce", "carry": carry, **_differing(first, want, first)}
        row |= {"unstable": _unstable(together, first, REPEATS)}
        yield row | {"time": _seconds(together, ranks, device)}


def _ring(ranks, of: Shared, seed: int, device: str) -> Iterator[Row]:
    draw, replays = Normal(seed, device), min(REPLAYS, max(1, RING_TOKENS // of.keys))
    work = Prefill((of.keys,), (of.keys,), causal=True, **of.heads, dtype=DTYPE)
    q, kv, ends = prefill_inputs(work, draw).arguments
    one, given = prefill(q, kv, ends, causal=True), (q, kv.k, kv.v)
    if of.operation == "backward":
        given = (draw.tensor(DTYPE, *q.shape), *given, *one.outputs())
        one = backward_step(*given, ends, ends, causal=True, deterministic=True)
    yield {"way": "one GPU", "time": _seconds(one.run, ranks, device, replays=replays)}
    places = [distributed.zigzag(of.keys, rank, ranks.size) for rank in range(ranks.size)]
    parts = [[x[place.to(device)] for x in given] for place in places]
    for carry in CARRIES if of.operation == "prefill" else ("fp32",):
        call, want = _ring_of(of.operation, parts, ranks, carry)
        first, step = call(), call()
        for way, run in {"ring": call, "ring again": step.run, "ring in a graph": step.run}.items():
            time = _seconds(run, ranks, device, graph="graph" in way, replays=replays)
            found = _differing(*(_flat(x) for x in (step.outputs(), want, first.outputs())))
            yield {"way": way, "carry": carry, "time": time, **found}
            for x in step.outputs():
                x.zero_()  # the next way must write all of it


def _ring_of(operation: str, parts: list, ranks, carry: str) -> tuple:
    """Return a ring's call on this rank, and its outputs by one process."""
    mine = parts[ranks.rank]
    if operation == "backward":
        want = distributed.ring_backward_in_turn([distributed.Rows(*x) for x in parts])
        return lambda: distributed.ring_backward(*mine, ranks), want[ranks.rank]
    order = [(ranks.rank - turn) % ranks.size for turn in range(ranks.size)]
    blocks = [distributed.Block(origin, *parts[origin][1:]) for origin in order]
    alone = distributed.ring_rows_step(mine[0], blocks, ranks.rank, causal=True, carry=carry)
    alone.run()
    return lambda: distributed.ring_prefill(*mine, ranks, carry=carry), alone.outputs()


def _flat(outputs):
    """Return all numbers in the format of the first output, side by side."""
    return torch.cat([x.flatten() for x in outputs if x.dtype == outputs[0].dtype])


def sums(ranks, sizes: tuple[int, ...], seed: int, device: str) -> list[Row]:
    """Return the rows of one rank of all-reduces. Units: sizes in bytes"""
    found = []
    for n_bytes, (dtype, kind) in itertools.product(sizes, SUMS.items()):
        draws = [torch.Generator(device).manual_seed(seed + rank) for rank in range(ranks.size)]
        how = {"device": device, "dtype": kind}
        parts = [torch.randn(n_bytes // kind.itemsize, generator=x, **how) for x in draws]

        def together(part=parts[ranks.rank]) -> torch.Tensor:
            total = part.clone()
            dist.all_reduce(total, group=ranks.group)
            return total

        first = together()
        row: Row = {"ranks": ranks.size, "numbers": len(first), "dtype": dtype, **said()}
        row |= _differing(first, _added(ranks, parts), first)
        found.append(row | {"unstable": _unstable(together, first, SUM_REPEATS)})
    return found


def said() -> Row:
    """Return what NCCL said that it used for this process's last sum; empty if it said nothing."""
    log = Path(os.environ.get("NCCL_DEBUG_FILE", os.devnull).replace("%p", f"{os.getpid()}"))
    found = SAID.findall(log.read_text()) if log.exists() else []
    algorithm, protocol, low, high = found[-1] if found else ("", "", "", "")
    channels = int(high) - int(low) + 1 if found else ""
    return {"algorithm": algorithm, "protocol": protocol, "channels": channels}


def _added(ranks, parts: list):
    """Return the sum of the parts in the order that a probe sees; that of two is the only one."""
    flat = torch.stack(parts).flatten(1)
    met = distributed.order_of_sums(ranks, flat[0])
    return distributed.sums_in_order(flat, met).view_as(parts[0])


def _differing(out, expected, again) -> Row:
    """Return how many numbers have other bits than expected, and than in a second run."""
    other, changed = (int((_bits(out) != _bits(x)).sum()) for x in (expected, again))
    return {"outputs": out.numel(), "other": other, "unstable": changed}


def _unstable(run: Callable[[], torch.Tensor], first: torch.Tensor, repeats: int) -> int:
    """Return how many numbers have other bits than the first in any of some runs."""
    changed = torch.zeros_like(first, dtype=torch.bool)
    for _ in range(repeats):
        changed |= _bits(run()) != _bits(first)
    return int(changed.sum())


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)


def _seconds(
    run, ranks, device: str, *, graph: bool = True, replays: int = REPLAYS, repeats: int = 20
) -> Any:
    """Return the median time of a call on this rank; "" on a CPU. Units: seconds"""
    run()
    if device == "cpu":
        return ""
    torch.cuda.synchronize()
    if graph:  # NCCL has a thread that asks the GPU meanwhile
        run = timing.capture(run, capture_error_mode="thread_local").replay
    times = []
    for _ in range(repeats):
        dist.barrier(group=ranks.group)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / replays)
    return timing.quartiles(times[2:]).median_s  # after two that warm up


EXPERIMENT = Experiment(
    "ranks",
    "Attention and sums over two GPUs or more, beside one GPU and beside one process",
    {DATA_FILE: schema.TABLES["ranks"], SUMS_FILE: schema.TABLES["sums"]},
    cells,
    rows,
    missing=missing,
    renewed=(DATA_FILE,),
)
