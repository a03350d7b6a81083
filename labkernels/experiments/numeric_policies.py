"""What a numeric policy costs and gains: the time of a decode step, and its error before the store.

A policy is timed with the output that everyone wants, in the input's format. Its error is that of
the same policy with an fp32 output, since the store to 16 bits hides every other source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments import _decode_rows as decode_rows
from labkernels.kernels.spec import KernelSpec, NumericPolicy, discover
from labkernels.measure import accuracy, device, timing
from labkernels.measure.accuracy import Bound, Errors, Reference
from labkernels.measure.cases import DecodeCase, decode_case
from labkernels.measure.expected import rounds_of
from labkernels.numerics.rounds import Rounds
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row
from labkernels.units import format_time
from labkernels.workload import Decode

NAME = "numeric_policies"
TITLE = "What each numeric policy of the decode kernels costs in time and gains in error"
DATA_FILE = "numeric_policies.csv"

SHAPES = ((57, 8192), (8, 1024))  # batch and keys: case 000, and one that is soon done
V_MEANS = (0, 1)  # a sum of one sign is what truncation shrinks


@dataclass(frozen=True)
class Way:
    """A kernel under a policy whose output has the input's format."""

    spec: KernelSpec
    policy: NumericPolicy

    @property
    def name(self) -> str:
        """The way in words."""
        return f"{self.spec.name} {self.policy.label}"

    def rounds(self, dtype: str, out: str) -> Rounds:
        """How it rounds, with an output of the input's format or in fp32."""
        on = self.spec.uses_tensor_cores(self.policy)
        return rounds_of(replace(self.policy, out=out), dtype, tensor_cores=on)


def workloads(*, quick: bool = False) -> list[Decode]:
    """Return the grid: each shape in each dtype; `quick` keeps the small shape."""
    return [
        Decode.uniform(batch, kv_len, q_heads=32, kv_heads=8, dtype=dtype)
        for batch, kv_len in (SHAPES[1:] if quick else SHAPES)
        for dtype in ("fp16", "bf16")
    ]


def ways() -> list[Way]:
    """Return every CUDA decode kernel under its default policy and what is worth a comparison.

    Of the tensor-core kernels: one switch at a time, and P in two parts with promoted sums.
    """
    return [
        Way(spec, policy)
        for spec in discover().values()
        if (spec.family, spec.language) == ("decode", "cuda")
        for policy in spec.policies
        if policy.out == "input" and _compared(policy, spec)
    ]


def _compared(policy: NumericPolicy, spec: KernelSpec) -> bool:
    default = spec.policies[0]
    if not spec.uses_tensor_cores(default):
        return policy == default
    changed = [
        field.name
        for field in fields(policy)
        if getattr(policy, field.name) != getattr(default, field.name)
    ]
    return len(changed) <= 1 or changed == ["p", "accumulate"]


def run(options: Options) -> Outcome:
    """Measure every way on this machine's GPU and write the data file, newest rows last.

    Raises: ValueError if there is no GPU, no commit, nothing to measure, or part of the grid would
    be written among the committed data.
    """
    from labkernels.cuda import device as cuda_device

    partial = options.quick or options.only
    if partial and options.out == store.DATA_DIR:
        raise ValueError("out is data/, where the table must be whole; allowed: --out FOLDER")
    chosen = [w for w in workloads(quick=options.quick) if options.only in w.label]
    if not chosen:
        labels = [w.label for w in workloads()]
        raise ValueError(f"only is {options.only!r} and matches nothing; workloads: {labels}")
    reason = cuda_device.available()
    if reason:
        raise ValueError(f"{NAME} needs a GPU: {reason}")
    started, commit, facts = datetime.now(UTC), commit_text(options), device.facts()
    path, total, failures = options.out / DATA_FILE, 0, []
    for workload in chosen:
        result = Cell(workload, options.seed)
        result.measure(options.repeats)
        origin = provenance.collect(
            {**facts, **result.sensors},
            seed=options.seed,
            repeats=options.repeats,
            commit=commit,
            started=started,
        )
        rows = [row | origin for row in result.rows]
        first = options.replace and not total
        total += (store.replace if first else store.append)(path, rows, schema.MEASUREMENTS)
        failures += result.failures
        options.progress(f"{workload.label}: {len(rows)} rows, {len(result.failures)} failures")
        for line in result.lines:
            options.say(f"    {line}")
    datapackage.write(options.out)
    return Outcome(total, (path,), tuple(failures))


class Cell:
    """One workload: rows without provenance, and words for the ways that failed their check."""

    def __init__(self, workload: Decode, seed: int) -> None:
        self.workload, self.rows, self.failures, self.lines = workload, [], [], []
        self.sensors: Mapping[str, float] = {}
        self._case = decode_case(workload, seed=seed)
        self._reference: Reference = accuracy.decode_reference(
            self._case.q, self._case.cache, scale=self._case.scale
        )
        self._bounds: dict[Rounds, Bound] = {}

    def measure(self, repeats: int) -> None:
        """Time every way, then take its error in fp32 for each mean of V."""
        right = self._timed(ways(), repeats)
        for mean in V_MEANS:
            if mean:
                self._shift_values(mean)
            for way in right:
                self._error(way, mean)

    def _timed(self, all_ways: list[Way], repeats: int) -> list[Way]:
        """Record the times of the ways whose timed output is right; return those ways."""
        steps = {way.name: _step(self._case, way.policy, way) for way in all_ways}
        replays = {name: timing.capture(step.run).replay for name, step in steps.items()}
        with device.sampling() as reading:
            times = timing.time_interleaved(replays, repeats=repeats)
        self.sensors = reading.sensors
        right = []
        for way in all_ways:
            step = steps[way.name]
            for tensor in (step.out, step.lse2):
                tensor.fill_(float("nan"))
            replays[way.name]()
            errors = self._judge(step, way.rounds(self.workload.dtype, "input"))
            if not errors.passed:
                self.failures.append(f"{way.name} on {self.workload.label}: {errors}")
                continue
            right.append(way)
            base = self._base(way, way.policy, step.plan.tile)
            self.rows += decode_rows.graph_rows(base, times[way.name])
            self.rows += decode_rows.plan_rows(base, step.plan)
            self.lines.append(f"{way.name}: {format_time(times[way.name].median_s)}")
        return right

    def _error(self, way: Way, mean: int) -> None:
        """Record the error before the store, if it keeps its bound.

        The expected RMSE is no check here: it knows nothing of truncation, the bias to be seen.
        """
        policy = replace(way.policy, out="fp32")
        step = _step(self._case, policy, way)
        for tensor in (step.out, step.lse2):
            tensor.fill_(float("nan"))
        step.run()
        errors = self._judge(step, way.rounds(self.workload.dtype, "fp32"))
        if not errors.bound_ratio <= 1.0:
            self.failures.append(f"{way.name}, fp32, V mean {mean}: {errors}")
            return
        base = self._base(way, policy, step.plan.tile)
        rows = decode_rows.error_rows(base, errors)
        self.rows += [{**row, "metric": metric_of(str(row["metric"]), mean)} for row in rows]
        self.lines.append(
            f"{way.name}, V mean {mean}: rmse {errors.rmse:.3g}, bias {errors.bias:.3g}"
        )

    def _judge(self, step, rounds: Rounds) -> Errors:
        case = self._case
        if rounds not in self._bounds:
            self._bounds[rounds] = accuracy.rounds_bound(
                case.q, case.cache, rounds, scale=case.scale
            )
        return accuracy.judge(step.out, step.lse2, self._reference, self._bounds[rounds])

    def _shift_values(self, mean: int) -> None:
        case = self._case
        case.cache.v.add_(mean)
        self._reference = accuracy.decode_reference(case.q, case.cache, scale=case.scale)
        self._bounds.clear()

    def _base(self, way: Way, policy: NumericPolicy, tile: str) -> Row:
        on = way.spec.uses_tensor_cores(policy)
        return decode_rows.base_row(
            NAME,
            self.workload,
            kernel=way.spec.name,
            backend=way.spec.language,
            tensor_cores="on" if on else "off",
            tile=tile,
            policy=policy.label,
            provenance={},
        )


def metric_of(metric: str, v_mean: int) -> str:
    """Return how the data names a metric for values of this mean and standard deviation 1."""
    return f"{metric}, V ~ N({v_mean}, 1)"


def _step(case: DecodeCase, policy: NumericPolicy, way: Way):
    from labkernels import ops

    return ops.decode_step(
        case.q, case.cache, kernel=way.spec.name, policy=policy, scale=case.scale
    )
