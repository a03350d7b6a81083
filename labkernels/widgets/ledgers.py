"""The data of the calculator in a page: ledgers of every CUDA kernel, and limits of GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from labkernels.budget.ledger import Ledger, Line
from labkernels.hardware import GPUS, Gpu
from labkernels.kernels.choice import missing
from labkernels.kernels.cuda_kernel import CudaKernel
from labkernels.kernels.kernel import HOPPER, Instance, Kernel
from labkernels.kernels.registry import discover
from labkernels.measure import resources
from labkernels.records import store
from labkernels.records.store import Row

DTYPE = "fp16"  # bf16 has the same bytes and registers
LIMITS = (
    "registers_per_sm",
    "registers_per_thread_max",
    "register_allocation_unit_per_warp",
    "warp_allocation_granularity",
    "smem_per_sm_bytes",
    "smem_per_block_max_bytes",
    "smem_reserved_per_block_bytes",
    "smem_allocation_unit_bytes",
    "threads_per_block_max",
    "warps_per_sm_max",
    "blocks_per_sm_max",
)
RATES = (
    "sm_count",
    "dram_bytes_per_s",
    "boost_clock_hz",
    "fp32_flops",
    "tensor_fp16_flops",
    "mufu_per_clk_per_sm",
)
COMPILED_FOR = "sm_90a"
GROUPS = [1 << i for i in range(11)]  # query heads of a KV head, of which a page takes up to 1,024
# Symbols that a reader may change, and the fields of a tile that they stand for. FREE_KERNELS have
# the same lines for every such tile, which test_budget.py of tests/widgets checks.
FREE = {"W": "warps", "T": "keys", "d": "stages"}
FREE_KERNELS = ("decode_fma", "decode_mma", "decode_mma_n8", "prefill_fma")


def limits(gpu: Gpu) -> dict[str, int | str]:
    """Return the facts of a GPU that `occupancy` and `least_time` use."""
    facts = {name: getattr(gpu, name) for name in (*LIMITS, *RATES)}
    return {"name": gpu.name, "arch": gpu.arch, **facts}


def entry(kernel: CudaKernel, instance: Instance) -> dict[str, Any]:
    """Return the ledgers of one compiled variant, and what a block of it takes."""
    smem, thread = kernel.smem(instance), kernel.registers(instance)
    names = {
        named.symbol: named for line in smem.lines + thread.lines for named in line.exact.names
    }
    free = FREE if kernel.name in FREE_KERNELS else {}
    return {
        "kernel": kernel.name,
        "head_dim": instance.head_dim,
        "tile": instance.tile.label,
        "threads": instance.tile.threads,
        "promised": instance.tile.blocks_per_sm,
        "operation": kernel.operation,
        "rows": instance.rows,
        "tensor_cores": instance.policy.tensor_cores,
        "values": {symbol: named.value for symbol, named in names.items()},
        "free": {symbol: names[symbol].meaning for symbol in free if symbol in names},
        "smem": ledger(smem),
        "thread": ledger(thread),
    }


def data() -> dict[str, Any]:
    """Return all that budget.mjs shows, as JSON. A ledger's rows are indices into `rows`.

    Tiles have many rows in common, so that a page loads each row once.
    """
    entries, legends, rows = [], {}, dict[str, int]()
    reports = [row for row in store.read("compiler_reports") if row["arch"] == COMPILED_FOR]
    for kernel in discover().values():
        if kernel.language != "cuda":
            continue
        seen = set()
        for head_dim in kernel.head_dims:
            for instance in kernel.instances(kernel.shape(dtype=DTYPE, head_dim=head_dim)):
                if (head_dim, instance.tile.label) not in seen:
                    seen.add((head_dim, instance.tile.label))
                    legends[kernel.name] = instance.tile.legend
                    made = _with_places(entry(kernel, instance), rows)
                    entries.append(made | {"compiled": compiled(instance, reports)})
    return {
        "gpus": [limits(gpu) for gpu in GPUS.values()],
        "entries": entries,
        "legends": legends,
        "lacks": {name: lacks(discover()[name]) for name in legends},
        "rows": [json.loads(row) for row in rows],
    } | variants(discover()[name] for name in legends)


def variants(kernels: Iterable[Any]) -> dict[str, Any]:
    """Return which kernels have windows, soft caps and sinks, and the rows of their blocks."""
    varied = [kernel for kernel in kernels if set(resources.VARIED) <= {*kernel.features}]
    decodes = [kernel for kernel in varied if kernel.operation == "decode"]
    return {
        "varied": [kernel.name for kernel in varied],
        "whole_tokens": [kernel.name for kernel in varied if kernel.needs == HOPPER],
        "decode_rows": {each.name: [each.rows(group) for group in GROUPS] for each in decodes},
    }


def compiled(instance: Instance, reports: Iterable[Row]) -> dict[str, list[int]]:
    """Return recorded registers and spilled bytes of a tile in bf16, by a variant's features."""
    named = resources.recorded_as(replace(instance, dtype="bf16"))
    del named["features"]
    found = [row for row in reports if named.items() <= row.items()]
    return {row["features"]: [row["registers"], row["spill_bytes"]] for row in found}


def lacks(kernel: Kernel) -> dict[str, str]:
    """Return why GPUs cannot run a kernel, as a phrase for each of these by its name."""
    reasons = {gpu.name: missing(kernel, gpu) for gpu in GPUS.values()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _with_places(entry: dict[str, Any], rows: dict[str, int]) -> dict[str, Any]:
    for name in ("smem", "thread"):
        texts = map(json.dumps, entry[name]["rows"])
        entry[name]["rows"] = [rows.setdefault(text, len(rows)) for text in texts]
    return entry


def ledger(of: Ledger) -> dict[str, Any]:
    """Return a ledger's rows and its total."""
    return {"rows": [_row(line) for line in of.lines], "total": of.total}


def _row(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "formula": line.formula,
        "symbols": line.exact.symbols,
        "amount": line.amount,
        "note": "; ".join(filter(None, (line.shares and f"shares {line.shares}", line.note))),
        "shares": line.shares,
        "phase": line.phase,
    }
