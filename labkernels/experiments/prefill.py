"""Prefill with tensor cores on and off, ragged and paged: our kernels and their peers."""

from collections.abc import Mapping
from datetime import UTC, datetime

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments import _decode_rows as decode_rows
from labkernels.experiments._prefill_cell import (
    CellResult,
    Contender,
    Measured,
    contenders,
    measure_cell,
)
from labkernels.experiments._prefill_grid import Cell, grid
from labkernels.experiments._prefill_rows import workload_columns
from labkernels.measure import device, prefill_peers
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row
from labkernels.units import format_time
from labkernels.workload import Prefill

NAME = "prefill"
TITLE = "Prefill, tensor cores on and off, ragged and paged, beside torch SDPA and FlashInfer"
DATA_FILE = "prefill.csv"


def run(options: Options) -> Outcome:
    """Measure the grid on this machine's GPU and write the data file as it goes.

    Raises: ValueError if there is no GPU, no commit, nothing to measure, or a quick run would
    write among the committed data.
    """
    from labkernels.cuda import device as cuda_device

    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/ and quick is on; allowed: --quick with --out FOLDER")
    cells = [cell for cell in grid(quick=options.quick) if options.picks(label_of(cell))]
    if not cells:
        raise ValueError(
            f"only is {options.only!r} and matches nothing; allowed: 'd128, causal|page 16'"
        )
    reason = cuda_device.available()
    if reason:
        raise ValueError(f"{NAME} needs a GPU: {reason}")
    started, commit, facts = datetime.now(UTC), commit_text(options), device.facts()
    options.progress(f"{facts['gpu']}, {len(cells)} workloads, commit {commit}")
    reason = prefill_peers.build_flashinfer("bf16")
    if reason:
        options.progress(reason)
    chosen = contenders({"flashinfer": reason} if reason else {})
    path, failures, total, fresh = options.out / DATA_FILE, [], 0, options.replace
    for cell in cells:
        result = measure_cell(cell, chosen, repeats=options.repeats, seed=options.seed)
        origin = provenance.collect(
            {**facts, **result.sensors},
            seed=options.seed,
            repeats=options.repeats,
            commit=commit,
            started=started,
        )
        rows = [row | origin | _repeats(row) for row in rows_of(cell, result)]
        put = store.replace if fresh else store.append
        total, fresh = total + put(path, rows, schema.PREFILL_MEASUREMENTS), False
        failures += [
            f"{contender.name} on {cell.workload.label}: {why}"
            for contender, metric, why in result.words
            if metric == "failed" and contender.backend in ("cuda", "triton")
        ]
        options.progress(_line(cell, result))
        del result
        _free()
    datapackage.write(options.out)
    return Outcome(total, (path,), tuple(failures))


def label_of(cell: Cell) -> str:
    """Return what `--only` is looked for in."""
    return f"{cell.workload.label} ({cell.why})"


def rows_of(cell: Cell, result: CellResult) -> list[Row]:
    """A cell's rows: times, rate, errors and plan; or why a contender has none."""
    rows = []
    for item in result.measured:
        rows += _measured_rows(cell, item)
    for contender, metric, why in result.words:
        rows.append(decode_rows.word_row(_base(cell.workload, contender), metric, why))
    return rows


def _measured_rows(cell: Cell, item: Measured) -> list[Row]:
    contender, plan = item.ready.contender, item.ready.plan
    base = _base(cell.workload, contender) | {
        "tile": plan.tile if plan else "",
        "note": item.ready.case.workload.label,
        "repeats": item.times.repeats,
    }
    rows = decode_rows.quartile_rows(base, "time", item.times)
    rate = item.ready.case.workload.flops / item.times.median_s
    rows.append(decode_rows.row(base, "rate", "median", rate, "FLOP/s"))
    rows += decode_rows.error_rows(base, item.errors)
    if plan is not None:
        rows += decode_rows.plan_rows(base, plan)
    return rows


def _base(workload: Prefill, contender: Contender) -> Row:
    return {
        "experiment": NAME,
        "kernel": contender.name,
        "backend": contender.backend,
        "tensor_cores": contender.tensor_cores,
        "policy": contender.policy,
        **workload_columns(workload),
    }


def _repeats(row: Mapping[str, object]) -> Row:
    return {"repeats": row["repeats"]} if "repeats" in row else {}


def _line(cell: Cell, result: CellResult) -> str:
    words = [f"{contender.name} {metric}" for contender, metric, _ in result.words]
    for item in result.measured:
        tera = item.ready.case.workload.flops / item.times.median_s / 1e12
        name = item.ready.contender.name
        words.append(f"{name} {format_time(item.times.median_s)} {tera:.0f} TFLOP/s")
    return f"{label_of(cell)}: " + ", ".join(words)


def _free() -> None:
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()
