"""Tables and equations of the resources of kernels for a workload, predicted and compiled."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from labkernels.bench.formulas import Equations, counted_lines
from labkernels.budget.occupancy import occupancy, waves
from labkernels.hardware import Gpu
from labkernels.kernels.call import Plan
from labkernels.kernels.kernel import Instance
from labkernels.kernels.operation import Operation
from labkernels.kernels.random_inputs import NoNumbers
from labkernels.measure import resources
from labkernels.measure.implementation import Implementation
from labkernels.measure.resources import Resources

REGISTERS, SMEM = "registers per thread", "shared memory per block, bytes"


@dataclass(frozen=True, eq=False)
class Planned:
    """How an implementation would serve a workload on a GPU.

    reason: why there is no plan, or why there is a plan but no ledger. known: the resources of a
    CUDA kernel; None for any other, since Triton's compiler decides what a Triton kernel takes.
    """

    item: Implementation
    gpu: Gpu
    plan: Plan | None = None
    known: Resources | None = None
    reason: str = ""


def all_planned(
    wanted: Sequence[tuple[Operation, Any, Implementation, Gpu]],
    *,
    progress: Callable[[list], Iterable] = iter,
) -> list[Planned]:
    """Plan workloads for GPUs without running them, and look up the resources of their kernels.

    Kernels are compiled at the same time. progress: iterates over the work.
    """
    plans = [_plan(*each) for each in wanted]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        workloads = (workload for _, workload, _, _ in wanted)
        made = list(map(partial(pool.submit, _with_resources), plans, workloads))
        return [each.result() for each in progress(made)]


def _plan(operation: Operation, workload, item: Implementation, gpu: Gpu) -> Planned:
    try:
        plan = item.prepare(operation.inputs(workload, NoNumbers()), target=gpu.key).plan
    except (ValueError, RuntimeError) as error:
        return Planned(item, gpu, reason=str(error))
    if item.library != "cuda":
        why = f"{item.library} allocates registers itself; only CUDA kernels have a ledger"
        return Planned(item, gpu, plan, reason=why)
    return Planned(item, gpu, plan)


def _with_resources(found: Planned, workload) -> Planned:
    if found.reason:
        return found
    instance = instance_of(found.item, workload, found.plan)
    return replace(found, known=resources.resources(instance, gpu=found.gpu))


def instance_of(item: Implementation, workload, plan: Plan) -> Instance:
    """Return the compiled variant that a plan of the workload names."""
    return item.spec.instance(resources.shape_of(item.spec, workload), item.policy, tile=plan.tile)


def budget_rows(found: Planned) -> list[dict]:
    """Return a row for each term of both ledgers, and rows for what was compiled and granted.

    counts: whether a term is a part of the predicted total.
    """
    if found.known is None:
        return []
    known, rows = found.known, []
    for resource, ledger in ((REGISTERS, known.predicted.ledger), (SMEM, known.smem)):
        counted = counted_lines(ledger)
        for line in ledger.lines:
            told = {"term": line.name, "formula": line.formula, "value": line.amount}
            told |= {"kind": "predicted", "counts": line in counted}
            rows.append({"resource": resource, **told})
        if known.compiled is not None:
            made = known.compiled
            value = made.registers if resource == REGISTERS else made.smem_bytes
            told = {"term": "compiled", "formula": made.source, "value": value}
            rows.append({"resource": resource, "kind": "compiled", **told, "counts": False})
    if granted := resources.find(known.instance.kernel).thread_registers(known.instance):
        told = {"term": "granted", "formula": "after setmaxnreg has moved registers"}
        told |= {"kind": "granted", "value": granted, "counts": False}
        rows.append({"resource": REGISTERS, **told})
    return rows


def occupancy_row(found: Planned) -> dict:
    """Return the blocks per SM that each resource allows, their minimum, warps and waves."""
    gpu = {"gpu": found.gpu.key, "blocks of the grid": found.plan and found.plan.blocks}
    if found.known is None:
        return gpu | {"note": found.reason}
    fit = found.known.occupancy
    compiled = found.known.compiled
    return gpu | {
        "registers": compiled.registers if compiled else found.known.predicted.registers,
        "smem_bytes": found.known.smem.total,
        "by_registers": fit.by_registers,
        "by_smem": fit.by_smem,
        "by_warps": fit.by_warps,
        "by_blocks": fit.by_blocks,
        "blocks_per_sm": fit.blocks_per_sm,
        "limit": fit.limit,
        "warps": fit.warps,
        "waves": waves(found.plan.blocks, fit, found.gpu) if fit.blocks_per_sm else float("nan"),
        "one_more": _one_more(found.known),
        "note": "" if compiled else "of predicted registers: there is no compiler here",
    }


def _one_more(known: Resources) -> str:
    """Return what a block may take at most for one block more to fit, where it takes more now."""
    gpu, fit = known.gpu, known.occupancy
    used = known.compiled.registers if known.compiled else known.predicted.registers
    threads, more = known.instance.tile.threads, fit.blocks_per_sm + 1
    if more > min(fit.by_warps, fit.by_blocks):
        return "no room for more warps"

    def fits(registers: int, smem_bytes: int) -> bool:
        given = {"registers": registers, "smem_bytes": smem_bytes}
        return occupancy(gpu, threads=threads, **given).blocks_per_sm >= more

    needs = []
    if not fits(used, 0):
        most = next(n for n in range(used - 1, 0, -1) if fits(n, 0))
        needs.append(f"{most} registers")
    if not fits(1, known.smem.total):
        kib = known.smem.total // 1024
        most = next(n for n in range(kib, -1, -1) if fits(1, 1024 * n))
        needs.append(f"{most} KiB")
    return " and ".join(needs)


def equations(found: Planned) -> Equations:
    """Write shared memory, registers and blocks per SM term by term, and as compiled.

    Raises: ValueError if the kernel has no ledgers, or cannot serve the workload.
    """
    if found.known is None:
        raise ValueError(f"kernel = {found.item.name!r}, allowed: one in CUDA; {found.reason}")
    return Equations(found.known)
