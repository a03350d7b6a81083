"""The search for a kernel's best tile: ledger, compiler and a model leave few runs of many.

Each stage needs less than the one behind it: the ledger standard Python, the compiler no GPU, the
model nothing more; only `measure` runs a kernel.
"""

import multiprocessing
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from labkernels.budget import TileTime, occupancy, registers_allowed, tile_time
from labkernels.budget.ledger import Ledger
from labkernels.cuda.compile import CompileError
from labkernels.hardware import Gpu
from labkernels.kernels import prefill_plan
from labkernels.kernels.prefill_plan import Lengths
from labkernels.kernels.spec import Instance, KernelSpec, PrefillTile, discover
from labkernels.measure import resources, timing
from labkernels.measure.accuracy import Chain, Errors
from labkernels.measure.timing import Quartiles
from labkernels.units import format_bytes
from labkernels.workload import Prefill

LEDGER, COMPILER = "ledger", "compiler"  # who rejects


@dataclass(frozen=True)
class Rejected:
    """A tile that cannot be, or should not: who says so, what for, and the whole reason."""

    instance: Instance
    by: str
    cause: str
    reason: str


@dataclass(frozen=True)
class Candidate:
    """A tile that compiles without spilling; registers a thread, blocks that an SM holds."""

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


def tunable(kernel: str) -> KernelSpec:
    """Return a kernel whose tiles can be searched.

    Raises: ValueError naming those that can.
    """
    known = {name: spec for name, spec in discover().items() if spec.space and spec.work}
    if kernel not in known:
        allowed = ", ".join(known)
        raise ValueError(f"kernel = {kernel!r}, allowed: {allowed}, which list their tiles")
    return known[kernel]


def space(spec: KernelSpec, workload: Prefill) -> list[Instance]:
    """Return every variant that the kernel's source can be compiled for, whether or not it fits.

    Raises: ValueError if the kernel does not support the workload.
    """
    kv = "ragged" if workload.page_size is None else "paged"
    shape = {"dtype": workload.dtype, "head_dim": workload.head_dim, "policy": spec.policies[0]}
    reason = spec.unsupported(**shape, kv=kv)
    if reason:
        raise ValueError(reason)
    tiles = spec.space(workload.head_dim)
    return replace(spec, tiles=lambda *_: tuple(tiles)).instances(**shape, rows=0, kv=kv)


def by_ledger(instances: Iterable[Instance], gpu: Gpu) -> tuple[list[Instance], list[Rejected]]:
    """Split the variants into those that fit a GPU and those that cannot, by their ledgers."""
    judged = [(instance, _over_budget(instance, gpu)) for instance in instances]
    kept = [instance for instance, rejected in judged if rejected is None]
    return kept, [rejected for _, rejected in judged if rejected is not None]


def by_compiler(instances: list[Instance], gpu: Gpu) -> Iterator[Candidate | Rejected]:
    """Compile the variants on all cores, and yield a candidate or the reason against each."""
    jobs = [(instance, gpu) for instance in instances]
    if len(jobs) < 2:
        yield from map(_compiled, jobs)
        return
    # NVRTC compiles one program at a time in a process, so threads would not help.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1), mp_context=context) as pool:
        yield from pool.map(_compiled, jobs)


def ranked(candidates: Iterable[Candidate], workload: Prefill, gpu: Gpu) -> list[Expected]:
    """Return the candidates with their expected times, shortest first."""
    found = [
        Expected(candidate, expected_time(candidate, workload, gpu)) for candidate in candidates
    ]
    return sorted(found, key=lambda item: item.time.time_s)


def expected_time(candidate: Candidate, workload: Prefill, gpu: Gpu) -> TileTime:
    """Return the model's time of a candidate: what a step asks, times the busiest SM's steps."""
    import numpy as np

    instance = candidate.instance
    lengths = Lengths(np.array(workload.q_lens), np.array(workload.kv_lens))
    cut = prefill_plan.cut(
        lengths,
        instance.tile,
        kv_heads=workload.kv_heads,
        group=workload.group,
        slots=1,
        causal=workload.causal,
        splits=1,
    )
    request, q_tile = cut.work[:, 0], cut.work[:, 1]
    last_row = (q_tile + 1) * instance.tile.q_rows - 1
    keys = prefill_plan.visible_keys(lengths, request, last_row, workload.group, workload.causal)
    steps = -(-keys // instance.tile.keys)
    work = discover()[instance.kernel].work(instance)
    return tile_time(work, steps.tolist(), gpu, blocks_per_sm=candidate.blocks_per_sm)


def measure(
    candidates: Iterable[Candidate],
    workload: Prefill,
    *,
    repeats: int,
    seed: int,
    say: Callable[[str], None] = lambda line: None,
) -> list[Run]:
    """Time candidates in turns on the current CUDA device, and judge what each computed."""
    from labkernels.measure.prefill_cases import prefill_case
    from labkernels.measure.prefill_judge import PrefillJudge

    case = prefill_case(workload, seed=seed)
    steps = {item: _step(item.instance, case) for item in candidates}
    say(f"{len(steps)} tiles are loaded; timing {repeats} turns of them")
    times = timing.time_interleaved(
        {item: step.run for item, step in steps.items()}, repeats=repeats, warmup=1
    )
    judge, runs = PrefillJudge(case), []
    for item, step in steps.items():
        policy = item.instance.policy
        chain = Chain(True, policy.denominator, policy.exp2)
        for tensor in (step.out, step.lse2):
            tensor.fill_(float("nan"))  # what a kernel does not write, the judge sees
        step.run()
        runs.append(Run(item, times[item], judge(step.out, step.lse2, chain)))
    return runs


def spec_with(instance: Instance) -> KernelSpec:
    """Return the instance's kernel as if that tile were its only option, listed or not."""
    return replace(discover()[instance.kernel], tiles=lambda *_: (instance.tile,))


def _step(instance: Instance, case):
    from labkernels import ops

    return ops.prefill_step(
        case.q,
        case.kv,
        case.cu_seqlens_q,
        causal=case.workload.causal,
        kernel=spec_with(instance),
        policy=instance.policy,
        scale=case.scale,
        splits=1,
    )


def _over_budget(instance: Instance, gpu: Gpu) -> Rejected | None:
    spec, tile = discover()[instance.kernel], instance.tile
    try:
        smem, registers = spec.smem(instance), spec.registers(instance)
    except ValueError as error:
        return Rejected(instance, LEDGER, "fragments do not divide", str(error))
    return (
        _over(instance, smem, gpu.smem_per_block_max_bytes, "a block")
        or _over(instance, smem, _smem_allowed(gpu, tile), f"a block, {tile.blocks_per_sm} an SM")
        or _over(
            instance,
            registers,
            _thread_registers(instance, gpu),
            f"a thread, {tile.blocks_per_sm} x {tile.threads} threads an SM",
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
    """A promise of few blocks that gives no thread a register more than that of one block more."""
    tile = instance.tile
    more = replace(tile, blocks_per_sm=tile.blocks_per_sm + 1)
    same = _registers(gpu, more) == _registers(gpu, tile)
    if not same or smem_bytes > _smem_allowed(gpu, more):
        return None
    reason = f"the same code as {more.label}: {_registers(gpu, tile)} registers a thread either way"
    return Rejected(instance, LEDGER, "another tile's code", reason)


def _smem_allowed(gpu: Gpu, tile: PrefillTile) -> int:
    return gpu.smem_per_sm_bytes // tile.blocks_per_sm - gpu.smem_reserved_per_block_bytes


def _thread_registers(instance: Instance, gpu: Gpu) -> int:
    traded = discover()[instance.kernel].thread_registers
    return _registers(gpu, instance.tile) if traded is None else traded(instance)


def _registers(gpu: Gpu, tile: PrefillTile) -> int:
    return registers_allowed(gpu, threads=tile.threads, blocks_per_sm=tile.blocks_per_sm)


def _compiled(job: tuple[Instance, Gpu]) -> Candidate | Rejected:
    instance, gpu = job
    try:
        report = resources.compile_instance(instance, arch=gpu.compile_arch).report
    except CompileError as error:
        return Rejected(instance, COMPILER, "an error", _first_error(str(error)))
    spilled = report.spill_store_bytes + report.spill_load_bytes
    if spilled:
        reason = f"{spilled} bytes spilled at {report.registers} registers a thread"
        return Rejected(instance, COMPILER, "spilled registers", reason)
    serialised = [line for line in report.warnings if "serialized" in line]
    if serialised:
        return Rejected(instance, COMPILER, "wgmma one after the other", serialised[0])
    smem_bytes = discover()[instance.kernel].smem(instance).total + report.static_smem_bytes
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
