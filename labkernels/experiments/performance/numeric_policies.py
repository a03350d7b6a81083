"""The cost and gain of a numeric policy: time of a decode step, and error before the store.

A policy is timed with an output in the input's format. Its error is measured with an fp32 output,
because the store to 16 bits hides every other source of error.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.decode.operation import OPERATION
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.kernel import Kernel
from labkernels.measure.benchmark import Benchmark, Measured, poison
from labkernels.measure.implementation import Implementation, implementations
from labkernels.measure.judge.judge import Judge, judge_of
from labkernels.policy import NumericPolicy
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE = "performance/numeric_policies.parquet"

SHAPES = ((57, 8192), (8, 1024))  # batch and keys: those of case 000, and a small shape
QUICK_SHAPES = ((2, 256),)
V_MEANS = (0, 1)  # truncation shrinks sums of one sign


def workloads(*, quick: bool = False) -> list[Decode]:
    """Return the grid: each shape in each dtype; `quick` has one small shape."""
    return [
        Decode.uniform(batch, kv_len, q_heads=32, kv_heads=8, dtype=dtype)
        for batch, kv_len in (QUICK_SHAPES if quick else SHAPES)
        for dtype in ("fp16", "bf16")
    ]


def ways() -> list[Implementation]:
    """Return every CUDA decode kernel under its default policy and the policies to compare.

    The other policies of tensor-core kernels change one field of the default, or both p and
    accumulate. The outputs of all have the input's format.
    """
    found = implementations(OPERATION.name, _policies).values()
    return [item for item in found if item.library == "cuda"]


def _policies(spec: Kernel) -> Sequence[NumericPolicy]:
    return [policy for policy in spec.policies if policy.out == "input" and _compared(policy, spec)]


def _compared(policy: NumericPolicy, spec: Kernel) -> bool:
    default = spec.policies[0]
    if not default.tensor_cores:
        return policy == default
    changed = [
        field.name
        for field in fields(policy)
        if getattr(policy, field.name) != getattr(default, field.name)
    ]
    return len(changed) <= 1 or changed == ["p", "accumulate"]


def cells(options: Options) -> Iterator[Cell]:
    """Yield the workloads; `quick` has a small one in each dtype."""
    for workload in workloads(quick=options.quick):
        yield Cell(workload.label, workload)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Time every way on a workload, then measure the errors of those that are right."""
    result = recording.benchmark(OPERATION, cell.of, ways(), graph=True)
    found = [row for item in result.measured.values() for row in _times(item, recording)]
    for mean in V_MEANS:
        found += _errors(result, mean, recording)
    recording.tell(f"{len(found)} rows")
    yield from ((DATA_FILE, row) for row in found)


def _times(item: Measured, recording: Recording) -> list[Row]:
    """Return the time and the plan of a way."""
    if item.graph is None:
        recording.fail(f"{item.name}: {item.note}")
        return []
    recording.tell(f"{item.name} {format_time(item.times.median_s)}")
    plan = item.step.plan
    base = measured.implementation_row(item.inputs.workload, item.implementation, plan=plan)
    return measured.graph_rows(base, item.graph) + measured.plan_rows(base, plan)


def _errors(result: Benchmark, mean: int, recording: Recording) -> Iterator[Row]:
    """Yield the errors before the store, of the ways that keep their bounds, with V ~ N(mean, 1).

    The RMSE ratio is not checked: the expected RMSE does not include the bias of truncation,
    which is measured here.
    """
    inputs, drawn = result.inputs, result.inputs.cache.v.clone()
    inputs.cache.v.add_(mean)
    judge = judge_of(OPERATION.name, inputs) if mean else result.judge
    for item in result.measured.values():
        yield from _errors_of(item, mean, judge, recording)
    inputs.cache.v.copy_(drawn)


def _errors_of(item: Measured, mean: int, judge: Judge, recording: Recording) -> list[Row]:
    way = item.implementation
    policy = replace(way.policy, out="fp32")
    wide = replace(way, policy=policy, label=policy.label)
    step = OPERATION.step(item.inputs, kernel=way.kernel, policy=policy)
    poison(step)
    step.run()
    errors = judge(step.outputs(), policy)
    if not errors.bound_ratio <= 1.0:
        recording.fail(f"{item.name}, fp32, V mean {mean}: {errors}")
        return []
    base = measured.implementation_row(item.inputs.workload, wide, plan=step.plan)
    rows = measured.error_rows(base, errors)
    return [{**row, "metric": metric_of(str(row["metric"]), mean)} for row in rows]


def metric_of(metric: str, v_mean: int) -> str:
    """Return the data's name of a metric for values with this mean and standard deviation 1."""
    return f"{metric}, V ~ N({v_mean}, 1)"


EXPERIMENT = Experiment(
    "numeric_policies",
    "What each numeric policy of the decode kernels costs in time and gains in error",
    {DATA_FILE: schema.MEASUREMENTS},
    cells,
    rows,
    whole=True,
)
