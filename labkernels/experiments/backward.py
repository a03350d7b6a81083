"""Backward: gradients of attention by our kernels and their peers, timed and held to float64."""

from datetime import UTC, datetime

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments import _decode_rows as decode_rows
from labkernels.experiments._backward_cell import (
    CellResult,
    Contender,
    Measured,
    contenders,
    measure_cell,
)
from labkernels.experiments._prefill_grid import CHANNELS, HEAD_DIMS, LENGTHS, TOKENS
from labkernels.experiments._prefill_rows import workload_columns
from labkernels.measure import device
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row
from labkernels.units import format_time
from labkernels.workload import Backward

NAME = "backward"
TITLE = "Backward, full and causal, beside torch SDPA's FlashAttention-2 and cuDNN"
DATA_FILE = "backward.csv"


def grid(*, quick: bool = False) -> list[Backward]:
    """Return the workloads in the order of measurement; `quick`: with 1024 tokens."""
    tokens, channels = (1024, 256) if quick else (TOKENS, CHANNELS)
    return [
        Backward((n,) * (tokens // n), (n,) * (tokens // n), heads, heads, head_dim, causal=causal)
        for head_dim in HEAD_DIMS
        for heads in (channels // head_dim,)
        for causal in (False, True)
        for n in ((512,) if quick else LENGTHS)
    ]


def run(options: Options) -> Outcome:
    """Measure the grid on this machine's GPU and write the data file as it goes.

    Raises: ValueError if there is no GPU, no commit, nothing to measure, or a quick run would
    write among the committed data.
    """
    from labkernels.cuda import device as cuda_device

    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/ and quick is on; allowed: --quick with --out FOLDER")
    cells = [work for work in grid(quick=options.quick) if options.picks(work.label)]
    if not cells:
        raise ValueError(f"only is {options.only!r} and matches nothing; allowed: 'd128, causal'")
    reason = cuda_device.available()
    if reason:
        raise ValueError(f"{NAME} needs a GPU: {reason}")
    started, commit, facts = datetime.now(UTC), commit_text(options), device.facts()
    options.progress(f"{facts['gpu']}, {len(cells)} workloads, commit {commit}")
    chosen, path = contenders(), options.out / DATA_FILE
    failures, total, fresh = [], 0, options.replace
    for work in cells:
        result = measure_cell(work, chosen, repeats=options.repeats, seed=options.seed)
        origin = provenance.collect(
            {**facts, **result.sensors},
            seed=options.seed,
            repeats=options.repeats,
            commit=commit,
            started=started,
        )
        rows = [row | origin for row in rows_of(work, result)]
        put = store.replace if fresh else store.append
        total, fresh = total + put(path, rows, schema.PREFILL_MEASUREMENTS), False
        failures += [
            f"{contender.name} on {work.label}: {why}"
            for contender, metric, why in result.words
            if metric == "failed" and contender.backend in ("cuda", "triton")
        ]
        options.progress(_line(work, result))
        del result
        _free()
    datapackage.write(options.out)
    return Outcome(total, (path,), tuple(failures))


def rows_of(work: Backward, result: CellResult) -> list[Row]:
    """A workload's rows: times, rate, errors by head and plan; or why a contender has none."""
    rows = []
    for item in result.measured:
        rows += _measured_rows(work, item)
    for contender, metric, why in result.words:
        rows.append(decode_rows.word_row(_base(work, contender), metric, why))
    return rows


def _measured_rows(work: Backward, item: Measured) -> list[Row]:
    base = _base(work, item.contender) | {"tile": item.plan.tile if item.plan else ""}
    rows = decode_rows.quartile_rows(base, "time", item.times)
    rate = work.flops / item.times.median_s
    rows.append(decode_rows.row(base, "rate", "median", rate, "FLOP/s"))
    for name, errors in item.errors.items():
        rows.append(decode_rows.row(base, f"{name}_error", "max_abs", errors.max_abs, "1"))
        rows.append(decode_rows.row(base, f"{name}_bound_ratio", "max", errors.bound_ratio, "1"))
        rows += [
            decode_rows.row(base, f"{name}_error, head {head}", "rmse", rmse, "1")
            for head, rmse in zip(errors.heads, errors.rmse, strict=True)
        ]
    if item.plan is not None:
        rows += decode_rows.plan_rows(base, item.plan)
    return rows


def _base(work: Backward, contender: Contender) -> Row:
    return {
        "experiment": NAME,
        "kernel": contender.name,
        "backend": contender.backend,
        "tensor_cores": contender.tensor_cores,
        "policy": contender.policy,
        **workload_columns(work),
    }


def _line(work: Backward, result: CellResult) -> str:
    words = [f"{contender.name} {metric}: {why}" for contender, metric, why in result.words]
    for item in result.measured:
        tera = work.flops / item.times.median_s / 1e12
        ratio = max(error.bound_ratio for error in item.errors.values())
        words.append(
            f"{item.contender.name} {format_time(item.times.median_s)} {tera:.0f} TFLOP/s"
            f" ({ratio:.2f} of the bound)"
        )
    return f"{work.label}: " + ", ".join(words)


def _free() -> None:
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()
