"""Search for a kernel's best tile: ledger, compiler and a model leave few tiles to run.

Neither the ledger nor the compiler nor the model needs a GPU. Only `measure` runs a kernel.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from labkernels.budget import TileTime, occupancy, registers_allowed, tile_time
from labkernels.budget.ledger import Ledger
from labkernels.cuda.compiler.nvrtc import CompileError
from labkernels.hardware import Gpu
from labkernels.kernels.call import Step
from labkernels.kernels.kernel import Instance, Kernel
from labkernels.kernels.operation import Operation, operations
from labkernels.kernels.packed_gqa import schedule
from labkernels.kernels.random_inputs import Normal
from labkernels.kernels.registry import discover
from labkernels.kernels.tile import Tile
from labkernels.kernels.workload import Workload
from labkernels.measure import resources, timing
from labkernels.measure.benchmark import poison
from labkernels.measure.judge.judge import judge_of
from labkernels.measure.judge.outputs import Errors
from labkernels.measure.timing import Quartiles
from labkernels.units import format_bytes


@dataclass(frozen=True)
class Rejected:
    """A rejected tile: the kind of reason, and the full reason."""

    instance: Instance
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
    """A candidate with the time that the model gives it; None if there is no model."""

    candidate: Candidate
    time: TileTime | None


@dataclass(frozen=True)
class Run:
    """A candidate that was measured: its times, and the verdict on its output."""

    candidate: Candidate
    times: Quartiles
    errors: Errors


def tunable(kernel: str) -> Kernel:
    """Return a kernel whose tiles can be searched: one in CUDA, whose operation has inputs.

    Raises: ValueError naming those that can.
    """
    every = resources.cuda_kernels()
    known = {name: spec for name, spec in every.items() if spec.operation in operations()}
    if kernel not in known:
        raise ValueError(f"kernel = {kernel!r}, allowed: {', '.join(known)}")
    return known[kernel]


def space(spec: Any, workload: Workload) -> list[Instance]:
    """Return every variant that the kernel's source has tiles for, whether or not it fits a GPU.

    A kernel that does not know them has those of its own list.
    Raises: ValueError if the kernel does not support the workload.
    """
    shape = resources.shape_of(spec, workload)
    every = tuple(spec.space(shape.head_dim)) if spec.refuses(shape) is None else ()
    wider = spec.changed(tiles=lambda shape, policy: every) if every else spec
    return wider.instances(shape)


def in_list(spec: Kernel, workload: Workload) -> set[str]:
    """Return the labels of the tiles that the kernel's own list has for the workload."""
    shape = resources.shape_of(spec, workload)
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


def ranked(candidates: Iterable[Candidate], workload: Workload, gpu: Gpu) -> list[Expected]:
    """Return the candidates with their expected times, shortest first.

    Without a model the kernel's own tiles come first, and then those whose blocks fill most of an
    SM's shared memory, since more keys can be on their way to it.
    """
    candidates = list(candidates)
    if candidates and not _modelled(candidates[0].instance):
        own = in_list(_spec(candidates[0].instance), workload)
        first = {one: one.instance.tile.label not in own for one in candidates}
        candidates.sort(key=lambda one: (first[one], -one.smem_bytes * one.blocks_per_sm))
        return [Expected(one, None) for one in candidates]
    times = {one: expected_time(one, workload, gpu) for one in candidates}
    return [Expected(one, times[one]) for one in sorted(times, key=lambda one: times[one].time_s)]


def expected_time(candidate: Candidate, workload: Any, gpu: Gpu) -> TileTime:
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
    candidates: Sequence[Candidate],
    workload: Workload,
    *,
    repeats: int,
    seed: int,
) -> list[Run]:
    """Time candidates in turns on the current CUDA device, and judge the output of each."""
    operation = operations()[_spec(candidates[0].instance).operation]
    inputs = operation.inputs(workload, Normal(seed))
    steps = {item: _step(operation, item.instance, inputs) for item in candidates}
    times = timing.time_interleaved(
        {item: step.run for item, step in steps.items()}, repeats=repeats, warmup=1
    )
    judge, runs = judge_of(operation.name, inputs), []
    for item, step in steps.items():
        poison(step)
        step.run()
        runs.append(Run(item, times[item], judge(step.outputs(), item.instance.policy)))
    return runs


def _step(operation: Operation, instance: Instance, inputs) -> Step:
    spec = _spec(instance)
    how = {"kernel": spec.with_tile(instance.tile), "policy": instance.policy}
    if _modelled(instance):
        how["splits"] = 1  # as in the model
    return operation.step(inputs, **how)


def _spec(instance: Instance) -> Any:
    return discover()[instance.kernel]


def _modelled(instance: Instance) -> bool:
    return _spec(instance).step_work(instance) is not None


def _over_budget(instance: Instance, gpu: Gpu) -> Rejected | None:
    spec, tile = _spec(instance), instance.tile
    try:
        smem, registers = spec.smem(instance), spec.registers(instance)
    except ValueError as error:
        return Rejected(instance, "fragments do not divide", str(error))
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
    return Rejected(instance, "another tile's code", reason)


def _smem_allowed(gpu: Gpu, tile: Tile) -> int:
    return gpu.smem_per_sm_bytes // tile.blocks_per_sm - gpu.smem_reserved_per_block_bytes


def _thread_registers(instance: Instance, gpu: Gpu) -> int:
    traded = _spec(instance).thread_registers(instance)
    return _registers(gpu, instance.tile) if traded is None else traded


def _registers(gpu: Gpu, tile: Tile) -> int:
    return registers_allowed(gpu, threads=tile.threads, blocks_per_sm=tile.blocks_per_sm)


def _compiled(instance: Instance, gpu: Gpu) -> Candidate | Rejected:
    try:
        report = resources.compile_instance(instance, arch=gpu.compile_arch).report
    except CompileError as error:
        return Rejected(instance, "an error", _first_error(str(error)))
    spilled = report.spill_store_bytes + report.spill_load_bytes
    if spilled:
        reason = f"{spilled} bytes spilled at {report.registers} registers per thread"
        return Rejected(instance, "spilled registers", reason)
    serialised = [line for line in report.warnings if "serialized" in line]
    if serialised:
        return Rejected(instance, "wgmma one after the other", serialised[0])
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
