"""Every cell of every experiment is planned or recorded here, as far as a CPU can."""

import functools
from dataclasses import replace

import pytest

from labkernels import experiments, hardware
from labkernels.experiments.experiment import Options
from labkernels.experiments.performance import backward, mla, prefill
from labkernels.experiments.sweep import record
from labkernels.experiments.timed import GridCell
from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.operation import operations
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import NoNumbers
from labkernels.kernels.registry import discover, kernels_of
from labkernels.measure import resources
from labkernels.measure.implementation import implementations
from labkernels.measure.profiling import child
from labkernels.records import schema, store


def listed_once(experiment):
    """Return the experiment with its grid kept: some read all tables to list their cells."""

    @functools.cache
    def cells(quick):
        return list(experiment.cells(Options(quick=quick)))

    return replace(experiment, cells=lambda options: cells(options.quick))


FOUND = {name: listed_once(found) for name, found in experiments.discover().items()}


def test_cells_have_labels_of_their_own_by_which_they_are_picked(experiment):
    grids = [experiment.chosen(Options(quick=quick)) for quick in (False, True)]
    assert len(grids[1]) <= len(grids[0])
    for quick, cells in zip((False, True), grids, strict=True):
        labels = [cell.label for cell in cells]
        assert len(set(labels)) == len(labels)
        assert all(label and "\n" not in label and "|" not in label for label in labels)
        for cell in (cells[0], cells[-1]):
            assert cell in experiment.chosen(Options(quick=quick, only=cell.label))


def test_an_experiment_fills_its_tables_and_keeps_parts_out_of_the_data(experiment):
    for name, table in experiment.tables.items():
        assert name.partition("/")[0] in ("performance", "accuracy", "hardware")
        assert table in schema.TABLES.values()
        found = store.path_of(name.rpartition("/")[2].partition(".")[0])
        assert not found.exists() or found == store.DATA_DIR / name
        if found.exists():
            assert schema.table_of(tuple(store.read(found)[0])) is table
    assert set(experiment.renewed) <= set(experiment.tables)
    with pytest.raises(ValueError, match=r"--quick with --out FOLDER|must be whole"):
        record(experiment, Options(quick=True, commit="abc1234"))


@pytest.fixture(params=FOUND)
def experiment(request):
    return FOUND[request.param]


def test_every_kernels_instances_run_somewhere_and_fit_there():
    """compiler_reports compiles each instance for an architecture of a GPU that it fits."""
    from labkernels.experiments.performance import compiler_reports

    for cell in FOUND["compiler_reports"].chosen(Options()):
        archs = compiler_reports.archs(cell.of)
        assert archs, cell.label
        spec = resources.find(cell.of.kernel)
        gpus = [gpu for gpu in hardware.GPUS.values() if gpu.compile_arch in archs]
        assert any(spec.fits(cell.of, gpu) for gpu in gpus), cell.label
        assert spec.template(cell.of)


def workloads(cell):
    """Return the workloads of a benchmark's cell, which is one or holds them."""
    if hasattr(cell.of, "workload"):
        return [w for w in (cell.of.workload, getattr(cell.of, "baseline", None)) if w is not None]
    return [cell.of]


PLANNED = {
    "decode_tensor_cores": "decode",
    "prefill": "prefill",
    "mla": "mla",
    "backward": "backward",
}


@pytest.mark.parametrize(("name", "operation"), PLANNED.items())
def test_every_kernel_is_planned_on_every_cell_or_refuses_in_words(name, operation):
    """Each step is checked, chosen and cut into blocks, on tensors without memory, not launched."""
    gpu, of, kernels = hardware.gpu("h200"), operations()[operation], kernels_of(operation, "cuda")
    planned, refusals = set(), []
    for cell in FOUND[name].chosen(Options()):
        for workload in workloads(cell):
            inputs = of.inputs(workload, NoNumbers())
            for kernel in kernels.values():
                try:
                    plan = of.step(inputs, kernel=kernel.name, target=gpu.key).plan
                except ValueError as error:
                    refusals.append((kernel.name, str(error)))
                    continue
                planned.add(kernel.name)
                assert plan.blocks > 0
                assert 0 <= plan.smem_bytes <= gpu.smem_per_block_max_bytes
                assert plan.waves == pytest.approx(plan.blocks / plan.blocks_per_sm / gpu.sm_count)
    assert planned == set(kernels)
    assert all(f"allowed for {kernel}" in words for kernel, words in refusals)


def of_bits(operation):
    return lambda cases: [(operation, case.workload, case.asked) for case in cases]


def of_counters(cell):
    """Yield what the profiled child prepares of our kernels, without those of cuBLAS and torch.

    A prefill in 8 bits has tiles of each policy, which the cells of its checksums plan.
    """
    _, calls = cell
    for call in (call for call in calls if call.operation != child.PREFILL_FP8):
        name = call.name.removesuffix(" ordered")
        if name in discover():
            tiled = child.with_tile(name, call.tile, call.head_dim) if call.tile else name
            yield call.operation, call.workload, {"kernel": tiled}


WITH_BITS = ("backward", "decode", "mla", "prefill", "prefill_fp8")
# Each run of a cell: its operation, its workload, and what the verb is asked for.
RUNS = {
    **{f"{name}_bits": of_bits(name) for name in WITH_BITS},
    "counters": of_counters,
}


@pytest.mark.parametrize("name", RUNS)
def test_every_run_of_every_cell_is_planned(name):
    """As above, each step is prepared but not launched; nothing may be refused."""
    cells = FOUND[name].chosen(Options())
    runs = {repr(run): run for cell in cells for run in RUNS[name](cell.of)}
    assert runs
    for operation, workload, asked in runs.values():
        inputs = operations()[operation].inputs(workload, NoNumbers())
        plan = operations()[operation].step(inputs, target="h200", **asked).plan
        assert plan.blocks > 0, (workload.label, asked)


def test_a_cell_is_recorded_whole(made_up_gpu, tmp_path):
    experiment = FOUND["prefill_bits"]  # which needs nothing that a CPU lacks
    first = experiment.chosen(Options(quick=True))[0].label
    options = Options(
        out=tmp_path, quick=True, only=first, repeats=2, commit="abc1234", say=lambda line: None
    )
    outcome = record(experiment, options)
    assert outcome.failures == ()
    assert outcome.rows > 0
    for path in outcome.files:
        if path.suffix in (".csv", ".parquet"):
            (row, *_) = store.read(path)
            assert row["started_utc"]


LENGTHS = (40, 17)
TINY = {
    prefill: GridCell(Prefill(LENGTHS, LENGTHS, 2, 2, 64, causal=True), "a test"),
    backward: GridCell(Backward(LENGTHS, LENGTHS, 2, 2, 64, causal=True)),
    mla: GridCell(MlaDecode(LENGTHS, 3, page_size=16), "a test"),
}


@pytest.mark.parametrize("module", TINY, ids=["prefill", "backward", "mla"])
def test_a_benchmark_of_an_operation_is_recorded_whole(module, made_up_gpu, monkeypatch, tmp_path):
    """One kernel and one peer that refuses: a whole grid's kernels would take minutes on a CPU."""
    name, every = module.EXPERIMENT.name, implementations(module.EXPERIMENT.name)
    few = {kernel: every[kernel] for kernel in (f"{name}_mma", "torch_fa2") if kernel in every}
    timed = replace(module.TIMED, grid=lambda *, quick: [TINY[module]])
    monkeypatch.setattr(module, "implementations", lambda *_: few)
    options = Options(out=tmp_path, repeats=2, commit="abc1234", say=lambda line: None)
    outcome = record(timed.experiment("a test"), options)
    assert outcome.failures == ()
    rows = store.read(tmp_path / f"performance/{name}.parquet")
    assert outcome.rows == len(rows)
    assert {row["kernel"] for row in rows} >= {f"{name}_mma"}
    assert {"splits", "blocks"} <= {row["metric"] for row in rows}
    rates = [row["value"] for row in rows if row["metric"] == "rate"]
    assert rates == [pytest.approx(TINY[module].workload.flops / 1e-3)] * len(rates) != []
    assert {row["gpu"] for row in rows} == {"FAKE"}
