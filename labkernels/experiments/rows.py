"""Measurements as rows of the tidy tables, without the columns that a whole recording shares."""

from collections.abc import Mapping
from typing import Any

from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.prefill.workload import Prefill
from labkernels.measure.benchmark import Benchmark
from labkernels.measure.implementation import Implementation
from labkernels.measure.judge.outputs import Errors
from labkernels.measure.timing import Quartiles
from labkernels.records.store import Row

Workload = Decode | Prefill | MlaDecode | Backward

# The facts of a plan, with units; the attributes have the same names.
PLAN_FACTS = {"splits": "splits", "keys_per_split": "keys", "blocks": "blocks", "launches": "1"}


def workload_columns(workload: Workload) -> Row:
    """Return the columns of a workload; a decode has neither q_len nor causal."""
    if isinstance(workload, MlaDecode):
        shape = {"kv_heads": 1, "head_dim": workload.latent_dim + workload.rope_dim}
    else:
        shape = {"kv_heads": workload.kv_heads, "head_dim": workload.head_dim}
    found = {
        "batch": workload.batch,
        "kv_len": max(workload.kv_lens),
        "q_heads": workload.q_heads,
        **shape,
        "page_size": workload.page_size or 0,
        "dtype": workload.dtype,
    }
    if isinstance(workload, Decode):
        return found
    q_len = workload.q_len if isinstance(workload, MlaDecode) else max(workload.q_lens)
    return found | {"q_len": q_len, "causal": workload.causal}


def base_row(
    workload: Workload,
    *,
    kernel: str,
    backend: str,
    tensor_cores: str = "",
    tile: str = "",
    policy: str = "",
) -> Row:
    """Return the columns that all rows of one implementation and workload share."""
    named = {"kernel": kernel, "backend": backend, "tensor_cores": tensor_cores}
    return {**named, "tile": tile, "policy": policy, **workload_columns(workload)}


def implementation_row(
    workload: Workload, item: Implementation, *, kernel: str = "", plan: Any = None
) -> Row:
    """Return the columns of an implementation, under its kernel's name or `kernel`."""
    return base_row(
        workload,
        kernel=kernel or item.kernel,
        backend=item.library,
        tensor_cores=item.tensor_cores,
        tile=plan.tile if plan else "",
        policy=item.label,
    )


def no_workload(kernel: str, backend: str, **columns: Any) -> Row:
    """Return the columns of a row about something other than attention: an instruction, a copy."""
    shape = ("batch", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size")
    return {"kernel": kernel, "backend": backend, **dict.fromkeys(shape, 0), **columns}


def ceiling_rows(ceilings: Mapping[str, tuple[Quartiles, int]]) -> list[Row]:
    """Return time and rate of the copy and of the read; percentages are relative to the copy."""
    rows = []
    for name, (times, moved_bytes) in ceilings.items():
        base = no_workload(name, "torch", repeats=times.repeats)
        rows += quartile_rows(base, "time", times)
        rate = moved_bytes / times.median_s
        rows.append(row(base, "bandwidth", "median", rate, "bytes/s"))
    return rows


def plan_rows(base: Row, plan: Any) -> list[Row]:
    """Return how a plan divides a workload into splits, blocks and launches."""
    return [
        row(base, name, "exact", getattr(plan, name), unit) for name, unit in PLAN_FACTS.items()
    ]


def error_rows(base: Row, errors: Errors) -> list[Row]:
    """Return the errors against float64, and the two ratios that decide whether they pass."""
    rows = [
        row(base, "error", "rmse", errors.rmse, "1"),
        row(base, "error", "bias", errors.bias, "1"),
        row(base, "error", "max_abs", errors.max_abs, "1"),
        row(base, "bound_ratio", "max", errors.bound_ratio, "1"),
        row(base, "rmse_ratio", "max", errors.rmse_ratio, "1"),
    ]
    if errors.lse2_max_abs is not None:
        rows.append(row(base, "lse2_error", "max_abs", errors.lse2_max_abs, "1"))
    return rows


def reason_row(base: Row, metric: str, words: str) -> Row:
    """Return a row with the reason why there is no number: `refused` or `failed`."""
    return {**row(base, metric, "exact", 1, "1"), "note": words}


def reason_rows(workload: Workload, result: Benchmark, *, by_name: bool = False) -> list[Row]:
    """Return a row for each implementation without times, under its kernel's or its own name."""
    rows = []
    for reason in result.reasons:
        name = reason.name if by_name else ""
        base = implementation_row(workload, reason.implementation, kernel=name)
        rows.append(reason_row(base, reason.metric, reason.words))
    return rows


def quartile_rows(base: Row, metric: str, times: Quartiles) -> list[Row]:
    """Return a row for each quartile of a time, in seconds."""
    named = {"q25": times.q25_s, "median": times.median_s, "q75": times.q75_s}
    return [row(base, metric, statistic, value, "s") for statistic, value in named.items()]


def row(base: Row, metric: str, statistic: str, value: float, unit: str) -> Row:
    """Return the row of one value; base has the columns that the rows of a measurement share."""
    return {**base, "metric": metric, "statistic": statistic, "value": value, "unit": unit}
