"""The cost and gain of a numeric policy: time of a decode step, and error before the store.

A policy is timed with an output in the input's format. Its error is measured with an fp32 output,
because the store to 16 bits hides every other source of error.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from labkernels.experiments import rows as measured
from labkernels.experiments.harness import Cell, Experiment, Options, Recording
from labkernels.kernels.call import Step
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.operation import OPERATION
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.random_inputs import Normal
from labkernels.kernels.registry import discover
from labkernels.measure import timing
from labkernels.measure.benchmark import poison
from labkernels.measure.implementation import prepared
from labkernels.measure.judge.judge import judge_of
from labkernels.policy import NumericPolicy
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE = "performance/numeric_policies.csv"

SHAPES = ((57, 8192), (8, 1024))  # batch and keys: those of case 000, and a small shape
QUICK_SHAPES = ((2, 256),)
V_MEANS = (0, 1)  # truncation shrinks sums of one sign


@dataclass(frozen=True)
class Way:
    """A kernel under a policy whose output has the input's format."""

    spec: Kernel
    policy: NumericPolicy

    @property
    def name(self) -> str:
        """The way as text."""
        return f"{self.spec.name} {self.policy.label}"


def workloads(*, quick: bool = False) -> list[Decode]:
    """Return the grid: each shape in each dtype; `quick` has one small shape."""
    return [
        Decode.uniform(batch, kv_len, q_heads=32, kv_heads=8, dtype=dtype)
        for batch, kv_len in (QUICK_SHAPES if quick else SHAPES)
        for dtype in ("fp16", "bf16")
    ]


def ways() -> list[Way]:
    """Return every CUDA decode kernel under its default policy and the policies to compare.

    The other policies of tensor-core kernels change one field of the default, or both p and
    accumulate.
    """
    return [
        Way(spec, policy)
        for spec in discover().values()
        if (spec.operation, spec.language) == ("decode", "cuda")
        for policy in spec.policies
        if policy.out == "input" and _compared(policy, spec)
    ]


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
    """Measure every way on a workload."""
    bench = Bench(cell.of, recording)
    bench.measure()
    recording.tell(f"{len(bench.rows)} rows")
    yield from ((DATA_FILE, row) for row in bench.rows)


class Bench:
    """One workload and its rows; a way that fails its check has none, and is noted as a failure."""

    def __init__(self, workload: Decode, recording: Recording) -> None:
        self.workload, self.rows, self._recording = workload, [], recording
        self._case = decode_inputs(workload, Normal(recording.options.seed, recording.device))
        self._judge = judge_of(OPERATION.name, self._case)

    def measure(self) -> None:
        """Time every way, then measure its error with an fp32 output for each mean of V."""
        right = self._timed(ways())
        for mean in V_MEANS:
            if mean:
                self._shift_values(mean)
            for way in right:
                self._error(way, mean)

    def _timed(self, all_ways: list[Way]) -> list[Way]:
        """Record the times of the ways whose timed output is right; return those ways."""
        steps = {way.name: self._step(way, way.policy) for way in all_ways}
        replays = {name: timing.capture(step.run).replay for name, step in steps.items()}
        with self._recording.sampling():
            times = timing.time_interleaved(replays, repeats=self._recording.options.repeats)
        right = []
        for way in all_ways:
            step = steps[way.name]
            poison(step)
            replays[way.name]()
            errors = self._judge(step.outputs(), way.policy)
            if not errors.passed:
                self._recording.fail(f"{way.name} on {self.workload.label}: {errors}")
                continue
            right.append(way)
            base = self._base(way, way.policy, step.plan.tile)
            self.rows += measured.graph_rows(base, times[way.name])
            self.rows += measured.plan_rows(base, step.plan)
            self._recording.tell(f"{way.name} {format_time(times[way.name].median_s)}")
        return right

    def _error(self, way: Way, mean: int) -> None:
        """Record the error before the store, if it keeps its bound.

        The RMSE ratio is not checked: the expected RMSE does not include the bias of truncation,
        which is measured here.
        """
        policy = replace(way.policy, out="fp32")
        step = self._step(way, policy)
        poison(step)
        step.run()
        errors = self._judge(step.outputs(), policy)
        if not errors.bound_ratio <= 1.0:
            self._recording.fail(f"{way.name}, fp32, V mean {mean}: {errors}")
            return
        base = self._base(way, policy, step.plan.tile)
        rows = measured.error_rows(base, errors)
        self.rows += [{**row, "metric": metric_of(str(row["metric"]), mean)} for row in rows]

    def _step(self, way: Way, policy: NumericPolicy) -> Step:
        return prepared(OPERATION, self._case, kernel=way.spec.name, policy=policy)

    def _shift_values(self, mean: int) -> None:
        self._case.cache.v.add_(mean)
        self._judge = judge_of(OPERATION.name, self._case)

    def _base(self, way: Way, policy: NumericPolicy, tile: str) -> Row:
        on = policy.tensor_cores
        return measured.base_row(
            self.workload,
            kernel=way.spec.name,
            backend=way.spec.language,
            tensor_cores="on" if on else "off",
            tile=tile,
            policy=policy.label,
        )


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
