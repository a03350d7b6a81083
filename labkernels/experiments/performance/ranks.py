"""Attention and sums over GPUs of one machine: their times, and outputs with other bits.

The ranks speak by NCCL. Attention is held against the same parts in one process, and its time
against one GPU with all keys; a sum is held against fp32 sums in the order of the ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE = "performance/ranks.csv"
PAGE_SIZE, DTYPE = 16, "bf16"
TIMEOUT_S = 120.0  # a first call compiles kernels and joins the ranks
REPLAYS = 10  # of a graph, between two events
SUMS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Shared:
    """What the ranks compute together. keys: of each request, or the numbers of a sum."""

    operation: str
    batch: int
    keys: int
    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128


GRID = (
    *(Shared("decode", 57, 8192), Shared("decode", 1, 131072, 64), Shared("decode", 1, 2**20, 64)),
    *(Shared("prefill", 1, n) for n in (8192, 65536)),
    *(Shared("sum", 1, n) for n in (1024, 2**17, 10**7)),
)
QUICK = (Shared("decode", 2, 200, 4, 2, 64), Shared("prefill", 1, 64, 4, 2, 64))
QUICK = (*QUICK, Shared("sum", 1, 1000))


def cells(options: Options) -> Iterator[Cell]:
    """Yield what is shared; `quick` has tiny shapes."""
    for of in QUICK if options.quick else GRID:
        words = f", {of.q_heads}/{of.kv_heads}, d{of.head_dim}" if of.operation != "sum" else ""
        yield Cell(f"{of.operation} {of.batch} x {of.keys}{words}", of)


def missing() -> str | None:
    """Return why the ranks cannot run here, or None."""
    import torch

    found = torch.cuda.device_count()
    return None if found > 1 else f"it needs two GPUs of one machine, here are {found}"


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Run the ranks of a cell, one on each GPU."""
    import torch

    from labkernels.distributed import on_gpus

    of: Shared = cell.of
    n = torch.cuda.device_count()
    found = on_gpus(on_rank, n, of, recording.options.seed, "cuda", timeout_s=TIMEOUT_S)
    for row in together(found):
        row |= {"nccl": ".".join(map(str, torch.cuda.nccl.version())), "torch": torch.__version__}
        yield DATA_FILE, row
        time = f" {format_time(row['time'])}" if row["time"] else ""
        recording.tell(f"{row['way']} {row['carry']}{time}, {row['other']} other")


def together(found: list[list[Row]]) -> Iterator[Row]:
    """Yield the rows of all ranks as one: the longest time, and all outputs."""
    for of_ranks in zip(*found, strict=True):
        row: dict[str, Any] = dict(of_ranks[0])
        row |= {name: sum(x[name] for x in of_ranks) for name in ("outputs", "other", "unstable")}
        if row["time"]:
            row["time"] = max(x["time"] for x in of_ranks)
        yield row


def on_rank(ranks, of: Shared, seed: int, device: str) -> list[Row]:
    """Return the rows of one rank."""
    run = {"decode": _decode, "prefill": _prefill, "sum": _sums}[of.operation]
    base: Row = {"operation": of.operation, "ranks": ranks.size, "batch": of.batch}
    base |= {"keys": of.keys, "dtype": DTYPE, "time": "", "carry": ""}
    if of.operation != "sum":
        base |= {name: getattr(of, name) for name in ("q_heads", "kv_heads", "head_dim")}
    none = {"outputs": 0, "other": 0, "unstable": 0}
    return [base | none | row for row in run(ranks, of, seed, device)]


def _decode(ranks, of: Shared, seed: int, device: str) -> Iterator[Row]:
    import torch

    from labkernels.distributed import context_parallel_decode, decode_in_parts, shard
    from labkernels.distributed.decode import CARRIES, MERGES
    from labkernels.kernels.caches.paged import PagedKV
    from labkernels.kernels.decode.api import decode_step

    draw = _normal(seed, device)
    pages = -(-of.keys // PAGE_SIZE)
    pools = [draw(of.batch * pages, PAGE_SIZE, of.kv_heads, of.head_dim) for _ in "kv"]
    table = torch.arange(of.batch * pages, dtype=torch.int32, device=device).view(of.batch, pages)
    lengths = torch.full((of.batch,), of.keys, dtype=torch.int32, device=device)
    q, cache = draw(of.batch, of.q_heads, of.head_dim), PagedKV(*pools, table, lengths)
    yield {"way": "one GPU", "time": _seconds(decode_step(q, cache).run, ranks, device)}
    own, heads = shard(cache, ranks.rank, ranks.size), of.q_heads // ranks.size
    mine = slice(ranks.rank * heads, (ranks.rank + 1) * heads)
    for carry in CARRIES:
        want = decode_in_parts(q, cache, ranks.size, carry=carry).outputs().out
        for merge in MERGES:
            step = context_parallel_decode(q, own, ranks, merge=merge, carry=carry)
            first = step.outputs().out.clone()
            step.run()
            part = want if merge == "gather" else want[:, mine]
            row: Row = {"way": merge, "carry": carry, **_differing(first, part, step.outputs().out)}
            yield row | {"time": _seconds(step.run, ranks, device)}


def _prefill(ranks, of: Shared, seed: int, device: str) -> Iterator[Row]:
    import torch

    from labkernels.distributed import ring_prefill, ring_rows, zigzag
    from labkernels.distributed.decode import CARRIES
    from labkernels.kernels.caches.ragged import RaggedKV
    from labkernels.kernels.prefill.api import prefill

    draw = _normal(seed, device)
    q, k, v = (draw(of.keys, heads, of.head_dim) for heads in (of.q_heads, *[of.kv_heads] * 2))
    ends = torch.tensor([0, of.keys], dtype=torch.int32, device=device)
    step = prefill(q, RaggedKV(k, v, ends), ends, causal=True)
    yield {"way": "one GPU", "time": _seconds(step.run, ranks, device)}
    places = [zigzag(of.keys, rank, ranks.size).to(device) for rank in range(ranks.size)]
    mine = [x[places[ranks.rank]] for x in (q, k, v)]
    for carry in CARRIES:
        order = [(ranks.rank - step) % ranks.size for step in range(ranks.size)]
        blocks = ((origin, k[places[origin]], v[places[origin]]) for origin in order)
        want = ring_rows(mine[0], blocks, ranks.rank, causal=True, carry=carry).out
        outs = [ring_prefill(*mine, ranks, carry=carry).out for _ in range(2)]
        row: Row = {"way": "ring", "carry": carry, **_differing(outs[0], want, outs[1])}

        def run(carry=carry) -> None:
            ring_prefill(*mine, ranks, carry=carry)

        yield row | {"time": _seconds(run, ranks, device, graph=False)}


def _sums(ranks, of: Shared, seed: int, device: str) -> Iterator[Row]:
    import torch
    import torch.distributed as dist

    from labkernels.kernels.random_inputs import DTYPES

    for dtype in SUMS:
        kind = DTYPES.get(dtype, torch.float32)
        parts = [_normal(seed + r, device)(of.keys, dtype=kind) for r in range(ranks.size)]
        expected = sum(x.float() for x in parts).to(kind)
        totals = [parts[ranks.rank].clone() for _ in range(2)]
        for total in totals:
            dist.all_reduce(total, group=ranks.group)
        found = _differing(totals[0], expected, totals[1])
        yield {"way": "all-reduce", "dtype": dtype, **found}


def _normal(seed: int, device: str):
    """Return a function that draws normal numbers, alike on all ranks."""
    import torch

    source = torch.Generator(device).manual_seed(seed)

    def draw(*shape: int, dtype=torch.bfloat16):
        return torch.empty(shape, device=device, dtype=dtype).normal_(generator=source)

    return draw


def _differing(out, expected, again) -> Row:
    """Return how many numbers have other bits than expected, and than in a second run."""
    import torch

    kind = torch.int16 if out.element_size() == 2 else torch.int32
    out, *others = (x.contiguous().view(kind) for x in (out, expected, again))
    other, unstable = (int((out != x).sum()) for x in others)
    return {"outputs": out.numel(), "other": other, "unstable": unstable}


def _seconds(run, ranks, device: str, *, graph: bool = True, repeats: int = 20) -> Any:
    """Return the median time of a call on this rank; "" on a CPU. Units: seconds"""
    import torch
    import torch.distributed as dist

    from labkernels.measure.timing import quartiles

    if device == "cpu":
        return ""
    run()
    torch.cuda.synchronize()
    replays = REPLAYS if graph else 1
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, capture_error_mode="thread_local"):
            run()
        run = captured.replay
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
    return quartiles(times[2:]).median_s  # after two that warm up


EXPERIMENT = Experiment(
    "ranks",
    "Attention and sums over two GPUs or more, beside one GPU and beside one process",
    {DATA_FILE: schema.TABLES["ranks"]},
    cells,
    rows,
    missing=missing,
    renewed=(DATA_FILE,),
)
