"""Paged decode with tensor cores on and off: our kernels and their peers, time and error."""

from collections.abc import Mapping
from datetime import UTC, datetime

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments import _decode_rows as decode_rows
from labkernels.experiments._contenders import Contender, contenders
from labkernels.experiments._decode_cell import CellResult, Measured, measure_cell, numbers
from labkernels.experiments._decode_grid import Cell, grid, keep
from labkernels.measure import device, peers, timing
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row
from labkernels.units import format_rate, format_time

NAME = "decode_tensor_cores"
TITLE = "Paged decode, tensor cores on and off, beside FlashInfer's three ways and torch SDPA"
DATA_FILE = "decode_tensor_cores.csv"
ACCURACY_FILE = "decode_accuracy.csv"
# Whose error is recorded for each sample and head, and which outputs are held against each other.
MAPPED = (
    "decode_fma",
    "decode_mma",
    "decode_mma_n8",
    "flashinfer_cuda_cores",
    "flashinfer_fa2",
    "flashinfer_auto",
)
DIFFERENCES = (("decode_mma", "decode_fma"), ("flashinfer_fa2", "flashinfer_cuda_cores"))


def run(options: Options) -> Outcome:
    """Measure the grid on this machine's GPU and write both data files as it goes.

    Raises: ValueError if there is no GPU, no commit, nothing to measure, or a quick run would
    write among the committed data.
    """
    cells, everyone = _chosen(options)
    started = datetime.now(UTC)
    commit = commit_text(options)
    facts = device.facts()
    options.progress(f"{facts['gpu']}, {len(cells)} workloads, commit {commit}")

    def origin(sensors: Mapping[str, float]) -> dict[str, object]:
        return provenance.collect(
            {**facts, **sensors},
            seed=options.seed,
            repeats=options.repeats,
            commit=commit,
            started=started,
        )

    with device.sampling() as reading:
        ceilings = timing.ceilings()
    copy_times, copy_bytes = ceilings["copy"]
    copy_bytes_per_s = copy_bytes / copy_times.median_s
    options.progress(f"copy ceiling {format_rate(copy_bytes_per_s)}")
    missing = _build_peers(cells, options)
    rows = decode_rows.ceiling_rows(NAME, ceilings, origin(reading.sensors))
    files = _Files(options)
    files.measurements(rows)
    failures: list[str] = []
    for cell, names in cells:
        chosen = {name: everyone[name] for name in names}
        result = measure_cell(
            cell, chosen, repeats=options.repeats, seed=options.seed, missing=missing
        )
        base = _Bases(cell, origin(result.sensors))
        files.measurements(_rows(result, base, cell, copy_bytes_per_s))
        if cell.accuracy_map:
            files.accuracy(_map_rows(result, base.provenance))
        failures += [
            f"{contender.name} on {cell.workload.label}: {reason}"
            for contender, metric, reason in result.words
            if metric == "failed" and contender.is_ours
        ]
        options.progress(_line(cell, result, copy_bytes_per_s))
        del result
        _free()
    return files.close(failures)


def _chosen(options: Options) -> tuple[list[tuple[Cell, list[str]]], dict[str, Contender]]:
    from labkernels.cuda import device as cuda_device

    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/ and quick is on; allowed: --quick with --out FOLDER")
    if options.repeats < 2:
        raise ValueError(f"repeats is {options.repeats}; allowed: 2 or more")
    everyone = contenders()
    cells = keep(grid(quick=options.quick), everyone, options.only)
    reason = cuda_device.available()
    if reason:
        raise ValueError(f"{NAME} needs a GPU: {reason}")
    return cells, everyone


def _build_peers(cells: list[tuple[Cell, list[str]]], options: Options) -> dict[str, str]:
    """Compile FlashInfer's modules; return its reason if it cannot run here."""
    reason = peers.flashinfer_missing()
    needed = {
        (cell.workload.dtype, cell.workload.head_dim)
        for cell, names in cells
        if cell.with_flashinfer and any(name.startswith("flashinfer") for name in names)
    }
    if needed and reason is None:
        options.progress(f"building FlashInfer's modules for {sorted(needed)}")
        try:
            peers.build_flashinfer(sorted(needed))
        except Exception as error:  # a build can fail in as many ways as there are tools
            reason = f"FlashInfer did not build: {peers.one_line(error)}"
        options.progress(reason or "FlashInfer is built")
    return {"flashinfer": reason} if reason else {}


class _Bases:
    """The columns that a contender's rows share in one cell."""

    def __init__(self, cell: Cell, origin: dict[str, object]) -> None:
        self._workload, self.provenance = cell.workload, origin

    def of(self, contender: Contender, *, tile: str = "") -> Row:
        return decode_rows.base_row(
            NAME,
            self._workload,
            kernel=contender.kernel,
            backend=contender.backend,
            tensor_cores=contender.tensor_cores,
            tile=tile,
            policy=contender.policy,
            provenance=self.provenance,
        )


class _Files:
    """The two data files of a run: measurements grow, the accuracy map is the newest run's."""

    def __init__(self, options: Options) -> None:
        self._options, self._rows = options, 0
        self._fresh = {DATA_FILE: options.replace, ACCURACY_FILE: True}
        self._written: list[str] = []

    def measurements(self, rows: list[Row]) -> None:
        self._write(DATA_FILE, rows, schema.MEASUREMENTS)

    def accuracy(self, rows: list[Row]) -> None:
        self._write(ACCURACY_FILE, rows, schema.DECODE_ACCURACY)

    def close(self, failures: list[str]) -> Outcome:
        datapackage.write(self._options.out)
        paths = tuple(self._options.out / name for name in self._written)
        return Outcome(self._rows, paths, tuple(failures))

    def _write(self, name: str, rows: list[Row], table: schema.Table) -> None:
        path = self._options.out / name
        put = store.replace if self._fresh[name] else store.append
        self._rows += put(path, rows, table)
        self._fresh[name] = False
        if name not in self._written:
            self._written.append(name)


def _rows(result: CellResult, bases: _Bases, cell: Cell, copy_bytes_per_s: float) -> list[Row]:
    rows = []
    for measured in result.measured.values():
        plan = measured.ready.plan
        base = bases.of(measured.contender, tile=plan.tile if plan else "")
        rows += decode_rows.time_rows(
            base,
            graph=measured.graph,
            eager=measured.eager,
            kv_bytes=cell.workload.kv_bytes,
            copy_bytes_per_s=copy_bytes_per_s,
        )
        rows += decode_rows.error_rows(base, measured.errors)
        if plan is not None:
            rows += decode_rows.plan_rows(base, plan)
        if measured.loaded is not None:
            rows += decode_rows.driver_rows(
                base, measured.loaded, measured.predicted, waves=plan.waves
            )
        if measured.note:
            rows.append(decode_rows.word_row(base, "not_captured", measured.note))
    rows += [
        decode_rows.word_row(bases.of(contender), metric, reason)
        for contender, metric, reason in result.words
    ]
    if cell.accuracy_map:
        for left, right in _pairs(result):
            base = bases.of(left.contender) | {"kernel": _pair_name(left, right)}
            rows += decode_rows.difference_rows(base, numbers(left), numbers(right))
    return rows


def _pairs(result: CellResult) -> list[tuple[Measured, Measured]]:
    done = result.measured
    return [(done[a], done[b]) for a, b in DIFFERENCES if a in done and b in done]


def _pair_name(left: Measured, right: Measured) -> str:
    return f"{left.contender.kernel} - {right.contender.kernel}"


def _map_rows(result: CellResult, origin: Mapping[str, object]) -> list[Row]:
    columns = {"started_utc": origin["started_utc"], "dtype": result.case.workload.dtype}
    rows = []
    for name in MAPPED:
        if name in result.measured:
            item = result.measured[name]
            named = {"kernel": item.contender.kernel, "tensor_cores": item.contender.tensor_cores}
            rows += decode_rows.map_rows({**columns, **named}, numbers(item), result.reference.o)
    for left, right in _pairs(result):
        named = {"kernel": _pair_name(left, right), "tensor_cores": ""}
        rows += decode_rows.map_rows({**columns, **named}, numbers(left), numbers(right))
    return rows


def _line(cell: Cell, result: CellResult, copy_bytes_per_s: float) -> str:
    words = [f"{contender.name} {metric}" for contender, metric, _ in result.words]
    for name, item in result.measured.items():
        time_s = (item.graph or item.eager).median_s
        share = 100.0 * cell.workload.kv_bytes / time_s / copy_bytes_per_s
        words.append(f"{name} {format_time(time_s)} {share:.0f}%")
    return f"{cell.workload.label} ({cell.why}): " + ", ".join(words)


def _free() -> None:
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()
