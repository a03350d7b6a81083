"""Results of the MLA experiments as rows of the tidy table."""

from labkernels.experiments import _decode_rows as decode_rows
from labkernels.experiments._prefill_cell import CellResult, Contender, Measured
from labkernels.records.store import Row
from labkernels.workload import MlaDecode


def workload_columns(workload: MlaDecode) -> Row:
    """The columns that say what was computed; head_dim counts both parts of a latent row."""
    return {
        "batch": workload.batch,
        "kv_len": max(workload.kv_lens),
        "q_len": workload.q_len,
        "q_heads": workload.q_heads,
        "kv_heads": 1,
        "head_dim": workload.latent_dim + workload.rope_dim,
        "page_size": workload.page_size,
        "causal": workload.causal,
        "dtype": workload.dtype,
    }


def rows_of(experiment: str, workload: MlaDecode, result: CellResult) -> list[Row]:
    """A workload's rows: times, rates, errors and plan; or why a contender has none."""
    rows = []
    for item in result.measured:
        rows += _measured_rows(experiment, workload, item)
    for contender, metric, why in result.words:
        base = _base(experiment, workload, contender)
        rows.append(decode_rows.word_row(base, metric, why))
    return rows


def _measured_rows(experiment: str, workload: MlaDecode, item: Measured) -> list[Row]:
    plan, median_s = item.ready.plan, item.times.median_s
    base = _base(experiment, workload, item.ready.contender) | {
        "tile": plan.tile if plan else "",
        "note": workload.label,
        "repeats": item.times.repeats,
    }
    rows = decode_rows.graph_rows(base, item.times)
    rows.append(decode_rows.row(base, "rate", "median", workload.flops / median_s, "FLOP/s"))
    bandwidth = workload.kv_bytes / median_s
    rows.append(decode_rows.row(base, "bandwidth", "median", bandwidth, "bytes/s"))
    rows += decode_rows.error_rows(base, item.errors)
    if plan is not None:
        rows += decode_rows.plan_rows(base, plan)
    return rows


def _base(experiment: str, workload: MlaDecode, contender: Contender) -> Row:
    return {
        "experiment": experiment,
        # "on" and "off" behind the name of one source have a column of their own
        "kernel": contender.name.removesuffix(f" {contender.tensor_cores}"),
        "backend": contender.backend,
        "tensor_cores": contender.tensor_cores,
        "policy": contender.policy,
        **workload_columns(workload),
    }
