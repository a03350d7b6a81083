"""Every cell of every experiment is planned or recorded here, as far as a CPU can."""

import functools
from dataclasses import replace

import pytest

from labkernels import experiments, hardware
from labkernels.experiments.accuracy import detection_runs, error_calibration
from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import record
from labkernels.experiments.performance import backward, mla, prefill
from labkernels.experiments.timed import GridCell
from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.operation import operations
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import NoNumbers
from labkernels.kernels.registry import discover, kernels_of
from labkernels.measure import resources
from labkernels.measure.implementation import implementations
from labkernels.measure.mutants.decode import EMPTY_REQUEST
from labkernels.measure.profiling import child
from labkernels.records import schema, store


def listed_once(experiment):
    """Return the experiment with its grid kept: some read all tables to list their cells."""

    @functools.cache
    def cells(quick):
        return list(experiment.cells(Options(quick=quick)))

    return replace(experiment, cells=lambda options: cells(options.quick))


FOUND = {name: listed_once(found) for name, found in experiments.discover().items()}
KINDS = ("performance", "accuracy", "hardware")


@pytest.fixture(params=FOUND)
def experiment(request):
    found = FOUND[request.param]
    if not list(found.cells(Options())):
        pytest.skip("it judges held-out bugs, and no set of them is here")
    return found


@pytest.mark.parametrize("quick", [False, True])
def test_cells_have_labels_of_their_own_by_which_they_are_picked(experiment, quick):
    cells = experiment.chosen(Options(quick=quick))
    labels = [cell.label for cell in cells]
    assert len(set(labels)) == len(labels)
    assert all(label and "\n" not in label and "|" not in label for label in labels)
    for cell in (cells[0], cells[-1]):
        assert cell in experiment.chosen(Options(quick=quick, only=cell.label))


def test_a_quick_grid_is_no_larger(experiment):
    assert len(experiment.chosen(Options(quick=True))) <= len(experiment.chosen(Options()))


def test_an_experiment_says_what_it_fills(experiment):
    assert experiment.title
    assert "\n" not in experiment.title
    for name, table in experiment.tables.items():
        assert name.partition("/")[0] in KINDS
        assert table in schema.TABLES.values()
        recorded = store.DATA_DIR / name
        if recorded.exists():
            assert schema.table_of(tuple(store.read(recorded)[0])) is table
    assert set(experiment.renewed) <= set(experiment.tables)


def test_a_quick_run_writes_elsewhere(experiment):
    with pytest.raises(ValueError, match=r"--quick with --out FOLDER|must be whole"):
        record(experiment, Options(quick=True, commit="abc1234"))


def test_a_part_of_a_table_that_must_be_whole_is_written_elsewhere(experiment):
    options = Options(only=experiment.chosen(Options())[0].label, commit="abc1234")
    if experiment.whole:
        with pytest.raises(ValueError, match="out is data/, where the table must be whole"):
            record(experiment, options)
    with pytest.raises(ValueError, match="only is 'nothing' and matches nothing"):
        record(experiment, Options(only="nothing"))


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
    "kv_append": "append",
    "numeric_policies": "decode",
    "tuning": "prefill",
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
    """Yield what the profiled child prepares of our kernels, without those of cuBLAS and torch."""
    _, calls = cell
    for call in calls:
        name = call.name.removesuffix(" ordered")
        if name in discover():
            tiled = child.with_tile(name, call.tile, call.head_dim) if call.tile else name
            yield call.operation, call.workload, {"kernel": tiled}


def of_host_time(call):
    operation = "decode" if isinstance(call.workload, Decode) else "prefill"
    return [(operation, call.workload, {})]


def of_tutorial(workload):
    return [("prefill", workload, {"kernel": "triton_prefill"})]


def of_detection(tasks):
    """Yield every kernel in every policy on the inputs of right kernels."""
    right = (task for task in tasks if not task.is_of_mutants)
    for workload in dict.fromkeys(map(detection_runs.right_workload, right)):
        for name, kernel in kernels_of("decode", "cuda").items():
            for policy in kernel.policies:
                yield "decode", workload, {"kernel": name, "policy": policy}


def of_calibration(bench):
    heads = (error_calibration.Q_HEADS, error_calibration.KV_HEADS, error_calibration.HEAD_DIM)
    for cell in bench:
        size = cell.size
        lengths = (size.kv_len,) * size.samples
        workload = Decode(lengths, *heads, error_calibration.PAGE_SIZE, cell.dtype)
        for policy in filter(None, (cell.policy, cell.other)):
            kernel = error_calibration.kernel_of(policy, cell.mma)
            asked = {"kernel": kernel, "policy": policy, "keys_per_split": size.keys_per_split}
            yield "decode", workload, asked


def of_ragged_test(drawn_or_tasks):
    """Yield every kernel on the inputs whose errors are measured, or that rules judge."""
    alike = drawn_or_tasks if isinstance(drawn_or_tasks, list) else [drawn_or_tasks]
    for test in dict.fromkeys(each.test for each in alike):
        lengths = ((test.q_len,) * test.batch, (test.kv_len,) * test.batch)
        shape = (test.heads, test.heads, test.head_dim)
        how = {"head_dim_v": test.head_dim_v, "causal": test.causal, "dtype": test.dtype}
        workload = Prefill(*lengths, *shape, **how)
        for name in kernels_of("prefill", "cuda"):
            yield "prefill", workload, {"kernel": name}


# Each run of a cell: its operation, its workload, and what the verb is asked for.
RUNS = {
    **{f"{name}_bits": of_bits(name) for name in ("backward", "decode", "mla", "prefill")},
    "counters": of_counters,
    "detection": of_detection,
    "error_calibration": of_calibration,
    "host_time": of_host_time,
    "ragged_test": of_ragged_test,
    "reliability": lambda case: [(case.operation.name, case.workload, case.asked)],
    "triton_tutorial": of_tutorial,
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


# Experiments that need nothing that a CPU lacks. Of the quick cells whose label contains the text,
# the first one runs, which takes seconds.
ON_A_CPU = {
    "batch_bits": "",
    "backward_bits": "",
    "decode_bits": "",
    "detection": f"mutants, {EMPTY_REQUEST}/bf16",
    "error_calibration": "",
    "kv_append": "",
    "mla_bits": "",
    "numeric_policies": "",
    "peer_verdicts": "",
    "prefill_bits": "",
    "ragged_test": "",
    "triton_tutorial": "",
    "two_roads": "",
}


LONG = {"triton_tutorial"}  # Triton's interpreter takes half a minute
WHOLE = [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in ON_A_CPU]


@pytest.mark.parametrize("name", WHOLE)
def test_a_cell_is_recorded_whole(name, made_up_gpu, tmp_path):
    experiment = FOUND[name]
    asked = Options(quick=True, only=ON_A_CPU[name])
    first = experiment.chosen(asked)[0].label
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


# Experiments whose grids no test here goes through: what does so, or why nothing can.
ELSEWHERE = {
    "batch_invariance": "needs times of a GPU; batch_invariance/test_price.py makes its rows",
    "compiler_reports": "test_every_kernels_instances_run_somewhere_and_fit_there compiles none",
    "datasheets": "asks each kernel what tests/probing asks planted and right ones",
    "probe_sets": "needs the file of a set, which --peer-path names",
    "register_growth": "compiles the lines of a chapter",
    "special_functions": "asks the GPU's own unit, which a CPU has not",
    "strangers": "asks verdicts alone; measure/strangers/test_runs.py makes its rows",
    "tensor_core_arithmetic": "hardware/test_tensor_core_arithmetic.py runs the probes",
    "triton_dot": "asks the GPU's own unit, which a CPU has not",
}


def test_no_experiment_is_forgotten():
    assert set(PLANNED) | set(RUNS) | set(ON_A_CPU) | set(ELSEWHERE) == set(FOUND)


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
