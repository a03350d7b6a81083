"""Results of the decode experiment as rows of the tidy table."""

from collections.abc import Mapping

from labkernels.measure.accuracy import Errors
from labkernels.measure.timing import Quartiles
from labkernels.records.store import Row
from labkernels.workload import Decode

# The facts of a plan, each with its unit; a plan's attribute carries the same name.
PLAN_FACTS = {
    "registers": "registers",
    "smem_bytes": "bytes",
    "blocks_per_sm": "blocks",
    "splits": "splits",
    "keys_per_split": "keys",
    "blocks": "blocks",
    "waves": "waves",
    "launches": "launches",
}


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
        rows += _quartile_rows(base, "time_graph", times)
        rate = moved_bytes / times.median_s
        rows.append(_row(base, "bandwidth", "median", rate, "bytes/s"))
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
    rows = _quartile_rows({**base, "repeats": eager.repeats}, "time_eager", eager)
    if graph is None:
        return rows
    base = {**base, "repeats": graph.repeats}
    rows += _quartile_rows(base, "time_graph", graph)
    rate = kv_bytes / graph.median_s
    share_percent = 100.0 * rate / copy_bytes_per_s
    rows.append(_row(base, "bandwidth", "median", rate, "bytes/s"))
    rows.append(_row(base, "copy_ceiling_share", "median", share_percent, "percent"))
    return rows


def plan_rows(base: Row, plan: object) -> list[Row]:
    """Return what the plan and the driver say of one launch."""
    return [
        _row(base, name, "exact", getattr(plan, name), unit) for name, unit in PLAN_FACTS.items()
    ]


def error_rows(base: Row, errors: Errors) -> list[Row]:
    """Return the errors against float64; bound_ratio is the worst error over its own bound."""
    rows = [
        _row(base, "error", "rmse", errors.rmse, "1"),
        _row(base, "error", "bias", errors.bias, "1"),
        _row(base, "error", "max_abs", errors.max_abs, "1"),
        _row(base, "bound_ratio", "max", errors.bound_ratio, "1"),
    ]
    if errors.lse2_max_abs is not None:
        rows.append(_row(base, "lse2_error", "max_abs", errors.lse2_max_abs, "1"))
    return rows


def word_row(base: Row, metric: str, reason: str) -> Row:
    """Return a row that says in words why there is no number: `refused` or `failed`."""
    return {**_row(base, metric, "exact", 1, "1"), "note": reason}


def _quartile_rows(base: Row, metric: str, times: Quartiles) -> list[Row]:
    named = {"q25": times.q25_s, "median": times.median_s, "q75": times.q75_s}
    return [_row(base, metric, statistic, value, "s") for statistic, value in named.items()]


def _row(base: Row, metric: str, statistic: str, value: float, unit: str) -> Row:
    return {**base, "metric": metric, "statistic": statistic, "value": value, "unit": unit}
