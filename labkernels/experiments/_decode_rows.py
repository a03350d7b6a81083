"""Results of the decode experiment as rows of the tidy table."""

from collections.abc import Mapping

import numpy as np

from labkernels.budget.occupancy import Occupancy
from labkernels.measure.accuracy import Errors
from labkernels.measure.resources import Loaded
from labkernels.measure.timing import Quartiles
from labkernels.numerics import metrics
from labkernels.records.store import Row
from labkernels.workload import Decode

# What a plan and a driver say, with units; their attributes carry the same names.
PLAN_FACTS = {"splits": "splits", "keys_per_split": "keys", "blocks": "blocks", "launches": "1"}
DRIVER_FACTS = {
    "registers": "registers",
    "local_bytes": "bytes",
    "smem_bytes": "bytes",
    "blocks_per_sm": "blocks",
}
MAP_DIGITS = 3


def base_row(
    experiment: str,
    workload: Decode,
    *,
    kernel: str,
    backend: str,
    tensor_cores: str,
    provenance: Mapping[str, object],
    tile: str = "",
    policy: str = "",
) -> Row:
    """Return the columns that all rows of one contender and workload share."""
    return {
        "experiment": experiment,
        "kernel": kernel,
        "backend": backend,
        "tensor_cores": tensor_cores,
        "tile": tile,
        "policy": policy,
        "batch": workload.batch,
        "kv_len": workload.max_kv_len,
        "q_heads": workload.q_heads,
        "kv_heads": workload.kv_heads,
        "head_dim": workload.head_dim,
        "page_size": workload.page_size,
        "dtype": workload.dtype,
        **provenance,
    }


def ceiling_rows(
    experiment: str,
    ceilings: Mapping[str, tuple[Quartiles, int]],
    provenance: Mapping[str, object],
) -> list[Row]:
    """Return time and rate of the copy and the read that every percentage divides by."""
    rows = []
    for name, (times, moved_bytes) in ceilings.items():
        none = dict.fromkeys(("batch", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size"), 0)
        base = {"experiment": experiment, "kernel": name, "backend": "torch", **none}
        base |= {**provenance, "repeats": times.repeats}
        rows += quartile_rows(base, "time", times)
        rate = moved_bytes / times.median_s
        rows.append(row(base, "bandwidth", "median", rate, "bytes/s"))
    return rows


def time_rows(
    base: Row,
    *,
    graph: Quartiles | None,
    eager: Quartiles,
    kv_bytes: int,
    copy_bytes_per_s: float,
) -> list[Row]:
    """Return the times of one contender, and its rate where a graph time exists.

    Units: bandwidth counts K and V once, as bytes/s; the share is in percent of the copy.
    """
    rows = quartile_rows({**base, "repeats": eager.repeats}, "time_eager", eager)
    if graph is None:
        return rows
    rows += graph_rows(base, graph)
    base = {**base, "repeats": graph.repeats}
    rate = kv_bytes / graph.median_s
    share_percent = 100.0 * rate / copy_bytes_per_s
    rows.append(row(base, "bandwidth", "median", rate, "bytes/s"))
    rows.append(row(base, "copy_ceiling_share", "median", share_percent, "percent"))
    return rows


def graph_rows(base: Row, graph: Quartiles) -> list[Row]:
    """Return the quartiles of a graph's replay."""
    return quartile_rows({**base, "repeats": graph.repeats}, "time_graph", graph)


def plan_rows(base: Row, plan: object) -> list[Row]:
    """Return how a decode was cut into blocks."""
    return _fact_rows(base, plan, PLAN_FACTS)


def driver_rows(base: Row, loaded: Loaded, predicted: Occupancy, *, waves: float) -> list[Row]:
    """Return what the driver reports of a kernel, and the blocks on an SM that the budget predicts.

    Units: waves are the grid's blocks over the blocks that the whole GPU holds at once.
    """
    return [
        *_fact_rows(base, loaded, DRIVER_FACTS),
        row(base, "blocks_per_sm_predicted", "exact", predicted.blocks_per_sm, "blocks"),
        row(base, "waves", "exact", waves, "waves"),
    ]


def error_rows(base: Row, errors: Errors) -> list[Row]:
    """Return the errors against float64, and the two ratios that the verdict is made from."""
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


def difference_rows(base: Row, left: np.ndarray, right: np.ndarray) -> list[Row]:
    """Return how two outputs of the same inputs differ, with the two relative errors of the case.

    Error: max_relative and mean_relative divide by values near zero; they are here to be shown.
    """
    table = metrics.error_table(left, right, by="all")
    apart = np.abs(metrics.difference(left, right))
    nonzero = right != 0
    values = {
        "rmse": table["rmse"],
        "max_abs": table["max_abs"],
        "share": table["different"],
        "max_relative": metrics.max_relative_error(left[nonzero], right[nonzero]),
        "mean_relative": np.mean(apart[nonzero] / np.abs(right[nonzero])),
    }
    return [row(base, "difference", name, float(value), "1") for name, value in values.items()]


def map_rows(columns: Row, out: np.ndarray, truth: np.ndarray) -> list[Row]:
    """Return a row of the accuracy table for each sample and head.

    Shapes: out, truth [B, Hq, D]; columns holds started_utc, dtype, kernel and tensor_cores
    """
    table = metrics.error_table(out, truth, by="sample_and_head")
    names = {"rmse": "rmse", "bias": "mean_signed", "max_abs": "max_abs"}
    return [
        {
            **columns,
            "sample": sample,
            "head": head,
            **{name: _short(table[sample, head][source]) for name, source in names.items()},
        }
        for sample, head in np.ndindex(table.shape)
    ]


def word_row(base: Row, metric: str, reason: str) -> Row:
    """Return a row that says in words why there is no number: `refused` or `failed`."""
    return {**row(base, metric, "exact", 1, "1"), "note": reason}


def _fact_rows(base: Row, facts: object, units: Mapping[str, str]) -> list[Row]:
    return [row(base, name, "exact", getattr(facts, name), unit) for name, unit in units.items()]


def _short(value: float) -> float:
    """Round to the digits that a map needs, so that the file stays small."""
    return float(f"{float(value):.{MAP_DIGITS}g}")


def quartile_rows(base: Row, metric: str, times: Quartiles) -> list[Row]:
    named = {"q25": times.q25_s, "median": times.median_s, "q75": times.q75_s}
    return [row(base, metric, statistic, value, "s") for statistic, value in named.items()]


def row(base: Row, metric: str, statistic: str, value: float, unit: str) -> Row:
    return {**base, "metric": metric, "statistic": statistic, "value": value, "unit": unit}
