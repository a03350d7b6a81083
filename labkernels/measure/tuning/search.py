"""Search for a kernel's best tile: ledger, compiler and a model leave few tiles to run.

Neither the ledger nor the compiler nor the model needs a GPU. Only `measure` runs a kernel.
"""

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from labkernels.budget import TileTime, occupancy, registers_allowed, tile_time
from labkernels.budget.ledger import Ledger
from labkernels.cuda.compiler.nvrtc import CompileError
from labkernels.hardware import Gpu
from labkernels.kernels.call import Step
from labkernels.kernels.cuda_kernel import TunableKernel
from labkernels.kernels.kernel import Instance, Kernel
from labkernels.kernels.operation import Operation, operations
from labkernels.kernels.packed_gqa import schedule
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.kernels.registry import discover
from labkernels.measure import resources, timing
from labkernels.measure.benchmark import poison
from labkernels.measure.judge.judge import judge_of
from labkernels.measure.judge.outputs import Errors
from labkernels.measure.timing import Quartiles
from labkernels.units import format_bytes

LEDGER, COMPILER = "ledger", "compiler"  # the stages that reject tiles


@dataclass(frozen=True)
class Rejected:
    """A rejected tile: the stage that rejects it, the kind of reason, and the full reason."""

    instance: Instance
    by: str
    cause: str
    reason: str


@dataclass(frozen=True)
class Candidate:
    """A tile that compiles without spills; registers per thread and shared memory per block."""

    instance: Instance
    registers: int
    smem_bytes: int
    blocks_per_sm: int


@dataclass(frozen=True)
class Expected:
    """A candidate with the time that the model gives it."""

    candidate: Candidate
    time: TileTime


@dataclass(frozen=True)
class Run:
    """A candidate that was measured: its times, and the verdict on its output."""

    candidate: Candidate
    times: Quartiles
    errors: Errors


def tunable(kernel: str) -> Kernel:
    """Return a kernel whose tiles can be searched.

    Raises: ValueError naming those that can.
    """
    known = {name: spec for name, spec in discover().items() if isinstance(spec, TunableKernel)}
    if kernel not in known:
        allowed = ", ".join(known)
        raise ValueError(f"kernel = {kernel!r}, allowed: {allowed}, which list their tiles")
    return known[kernel]


def space(spec: Any, workload: Prefill) -> list[Instance]:
    """Return every variant that the kernel's source has tiles for, whether or not it fits a GPU.

    Raises: ValueError if the kernel does not support the workload.
    """
    kv = "ragged" if workload.page_size is None else "paged"
    sizes = {"dtype": workload.dtype, "head_dim": workload.head_dim, "layout": kv}
    shape = spec.shape(**sizes, variant=workload.variant)
    tiles = tuple(spec.space(workload.head_dim)) if spec.refuses(shape) is None else ()
    return spec.changed(tiles=lambda shape, policy: tiles).instances(shape)


def in_list(spec: Kernel, workload: Prefill) -> set[str]:
    """Return the labels of the tiles that the kernel's own list has for long requests."""
    sizes = {"head_dim": workload.head_dim, "rows": max(workload.q_lens)}
    shape = spec.shape(**sizes, variant=workload.variant)
    return {tile.label for tile in spec.tiles(shape, spec.policies[0])}


def by_ledger(instances: Iterable[Instance], gpu: Gpu) -> tuple[list[Instance], list[Rejected]]:
    """Split the variants into those that fit a GPU and those that cannot, by their ledgers."""
    judged = [(instance, _over_budget(instance, gpu)) for instance in instances]
    kept = [instance for instance, rejected in judged if rejected is None]
    return kept, [rejected for _, rejected in judged if rejected is not None]


def by_compiler(
    instances: list[Instance], gpu: Gpu, pool: Executor
) -> Iterator[Candidate | Rejected]:
    """Compile the variants by an executor, and yield a candidate or a rejection for each.

    Its workers should be processes: each compiles one NVRTC program at a time.
    """
    for future in [pool.submit(_compiled, instance, gpu) for instance in instances]:
        yield future.result()


def ranked(candidates: Iterable[Candidate], workload: Prefill, gpu: Gpu) -> list[Expected]:
    """Return the candidates with their expected times, shortest first."""
    found = [
        Expected(candidate, expected_time(candidate, workload, gpu)) for candidate in candidates
    ]
    return sorted(found, key=lambda item: item.time.time_s)


def expected_time(candidate: Candidate, workload: Prefill, gpu: Gpu) -> TileTime:
    """Return the model's time of a candidate: a step's time, times the busiest SM's steps."""
    instance, variant = candidate.instance, workload.variant
    lengths = schedule.lengths_of(workload)
    made = schedule.schedule(
        lengths,
        instance.tile,
        kv_heads=workload.kv_heads,
        group=workload.group,
        slots=1,
        variant=variant,
        splits=1,
    )
    request, q_tile = made.work[:, 0], made.work[:, 1]
    of_tiles = (request, q_tile, instance.tile.q_rows)
    step_keys = instance.tile.keys
    keys = schedule.visible_keys(lengths, *of_tiles, workload.group, variant, step_keys)
    steps = -(-keys // step_keys)
    work = _spec(instance).step_work(instance)
    return tile_time(work, steps.tolist(), gpu, blocks_per_sm=candidate.blocks_per_sm)


def measure(
    candidates: Iterable[Candidate],
    workload: Prefill,
    *,
    repeats: int,
    seed: int,
) -> list[Run]:
    """Time candidates in turns on the current CUDA device, and judge the output of each."""
    operation = operations()["prefill"]
    inputs = operation.inputs(workload, Normal(seed))
    steps = {item: _step(operation, item.instance, inputs) for item in candidates}
    times = timing.time_interleaved(
        {item: step.run for item, step in steps.items()}, repeats=repeats, warmup=1
    )
    judge, runs = judge_of("prefill", inputs), []
    for item, step in steps.items():
        poison(step)
        step.run()
        runs.append(Run(item, times[item], judge(step.outputs(), item.instance.policy)))
    return runs


def _step(operation: Operation, instance: Instance, inputs) -> Step:
    kernel = discover()[instance.kernel].with_tile(instance.tile)
    how = {"kernel": kernel, "policy": instance.policy, "splits": 1}
    return operation.step(inputs, **how)


def _spec(instance: Instance) -> Any:
    return discover()[instance.kernel]


def _over_budget(instance: Instance, gpu: Gpu) -> Rejected | None:
    spec, tile = _spec(instance), instance.tile
    try:
        smem, registers = spec.smem(instance), spec.registers(instance)
    except ValueError as error:
        return Rejected(instance, LEDGER, "fragments do not divide", str(error))
    return (
        _over(instance, smem, gpu.smem_per_block_max_bytes, "per block")
        or _over(
            instance, smem, _smem_allowed(gpu, tile), f"per block, {tile.blocks_per_sm} per SM"
        )
        or _over(
            instance,
            registers,
            _thread_registers(instance, gpu),
            f"per thread, {tile.blocks_per_sm} x {tile.threads} threads per SM",
        )
        or _needless(instance, smem.total, gpu)
    )


def _over(instance: Instance, ledger: Ledger, limit: int, whose: str) -> Rejected | None:
    line = ledger.line_over(limit)
    if line is None:
        return None
    text = format_bytes if ledger.unit == "bytes" else str
    return Rejected(
        instance,
        LEDGER,
        f"{line.name!r} of {'shared memory' if ledger.unit == 'bytes' else 'registers'}",
        f"{text(ledger.total)} {whose}, allowed: {text(limit)}; over it with {line.name!r},"
        f" {text(line.amount)} = {line.formula}",
    )


def _needless(instance: Instance, smem_bytes: int, gpu: Gpu) -> Rejected | None:
    """Reject a tile if one more block per SM would fit and leave the register limit unchanged."""
    tile = instance.tile
    more = replace(tile, blocks_per_sm=tile.blocks_per_sm + 1)
    same = _registers(gpu, more) == _registers(gpu, tile)
    if not same or smem_bytes > _smem_allowed(gpu, more):
        return None
    reason = (
        f"the same code as {more.label}: {_registers(gpu, tile)} registers per thread either way"
    )
    return Rejected(instance, LEDGER, "another tile's code", reason)


def _smem_allowed(gpu: Gpu, tile: PrefillTile) -> int:
    return gpu.smem_per_sm_bytes // tile.blocks_per_sm - gpu.smem_reserved_per_block_bytes


def _thread_registers(instance: Instance, gpu: Gpu) -> int:
    traded = _spec(instance).thread_registers(instance)
    return _registers(gpu, instance.tile) if traded is None else traded


def _registers(gpu: Gpu, tile: PrefillTile) -> int:
    return registers_allowed(gpu, threads=tile.threads, blocks_per_sm=tile.blocks_per_sm)


def _compiled(instance: Instance, gpu: Gpu) -> Candidate | Rejected:
    try:
        report = resources.compile_instance(instance, arch=gpu.compile_arch).report
    except CompileError as error:
        return Rejected(instance, COMPILER, "an error", _first_error(str(error)))
    spilled = report.spill_store_bytes + report.spill_load_bytes
    if spilled:
        reason = f"{spilled} bytes spilled at {report.registers} registers per thread"
        return Rejected(instance, COMPILER, "spilled registers", reason)
    serialised = [line for line in report.warnings if "serialized" in line]
    if serialised:
        return Rejected(instance, COMPILER, "wgmma one after the other", serialised[0])
    smem_bytes = _spec(instance).smem(instance).total + report.static_smem_bytes
    held = occupancy(
        gpu,
        threads=instance.tile.threads,
        registers=report.registers,
        smem_bytes=smem_bytes,
    )
    return Candidate(instance, report.registers, smem_bytes, held.blocks_per_sm)


def _first_error(text: str) -> str:
    found = re.search(r"error:\s*(.+)", text)
    return found[1].strip() if found else text.splitlines()[-1]
