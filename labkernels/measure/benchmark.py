"""Measure one workload: prepare, check, capture, time in turns, then check the timed output."""

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from labkernels.cuda.compiler.nvrtc import CompileError
from labkernels.kernels.call import Step
from labkernels.kernels.operation import Operation
from labkernels.kernels.random_inputs import Normal
from labkernels.measure import telemetry, timing
from labkernels.measure.implementation import Implementation
from labkernels.measure.judge.judge import Judge, judge_of
from labkernels.measure.peers.peer import Refused, one_line
from labkernels.measure.timing import Quartiles

Progress = Callable[[list], Iterable]


@dataclass(frozen=True, eq=False)
class Measured:
    """Times of an implementation whose timed output kept its bounds.

    name: the implementation's name, followed by a word if it ran on the baseline. graph: times of
    replays of a CUDA graph; plain: of calls whose launches overlap; eager: of calls on an idle
    stream, if the graph could not be captured, as note says. Each is None if it was not asked for.
    simulated_s: seconds of a simulation's only run, which do not predict the time on a GPU.
    """

    name: str
    implementation: Implementation
    inputs: Any
    step: Step
    errors: Any  # what the operation's judge returns
    graph: Quartiles | None = None
    plain: Quartiles | None = None
    eager: Quartiles | None = None
    note: str = ""
    simulated_s: float | None = None

    @property
    def times(self) -> Quartiles:
        """The graph times, else the plain times, else the eager times."""
        return self.graph or self.plain or self.eager


@dataclass(frozen=True)
class Reason:
    """Why an implementation has no times: "unavailable", "refused" or "failed", and the reason."""

    name: str
    implementation: Implementation
    metric: str
    words: str


@dataclass(frozen=True, eq=False)
class Benchmark:
    """The results of a workload: measurements by name, and reasons for missing ones.

    judge: the judge of the inputs, with the float64 truth as its reference. sensors: clock and
    power while the times were taken.
    """

    inputs: Any
    judge: Judge
    sensors: Mapping[str, float]
    measured: Mapping[str, Measured]
    reasons: tuple[Reason, ...]

    @property
    def failures(self) -> list[str]:
        """Which of our kernels failed, and why. Such a failure fails the measurement."""
        return [
            f"{reason.name} on {self.inputs.workload.label}: {reason.words}"
            for reason in self.reasons
            if reason.metric == "failed" and reason.implementation.is_ours
        ]


def benchmark(
    operation: Operation,
    workload,
    of: Iterable[Implementation],
    *,
    repeats: int,
    seed: int,
    graph: bool,
    baseline: tuple[str, Any] | None = None,
    missing: Mapping[str, str] | None = None,
    device: str = "cuda",
    progress: Progress = iter,
) -> Benchmark:
    """Measure implementations of an operation on one workload, on the current CUDA device.

    graph: time the replay of a CUDA graph; else calls in succession. An implementation whose graph
    cannot be captured gets times of calls on an idle stream, with a third of the repeats. baseline:
    a word and another workload, on which our CUDA kernels are timed in the same turns. missing: the
    reasons why libraries cannot run here, by library. progress: iterates over the work. The output
    of the first run is judged, and after all timing that of the timed function.
    """
    of = list(of)
    whole = _Inputs(operation, workload, seed, device)
    entries = [_Entry(item.name, item, whole) for item in of]
    if baseline is not None:
        word, other = baseline
        plain = _Inputs(operation, other, seed, device)
        cuda = [item for item in of if item.library == "cuda"]
        entries += [_Entry(f"{item.name} {word}", item, plain) for item in cuda]
    reasons: list[Reason] = []
    ready = [
        entry
        for entry in progress(entries)
        if entry.prepare(reasons, missing or {}) and entry.first_run(reasons)
    ]
    for entry in ready:
        if graph:
            entry.capture()
    with telemetry.sampling() as reading:
        timed = {entry.name: entry.timed for entry in ready if entry.replay or not graph}
        times = timing.time_interleaved(timed, repeats=repeats) if timed else {}
    calls = {entry.name: entry.step.run for entry in ready if entry.note}
    idle = timing.time_interleaved(calls, repeats=max(4, repeats // 3), eager=True) if calls else {}
    measured = {}
    for entry in ready:
        errors = entry.errors(entry.timed, reasons)
        if errors is not None:
            name = entry.name
            kind = {"graph" if graph else "plain": times.get(name), "eager": idle.get(name)}
            of_entry = (name, entry.implementation, entry.inputs.inputs, entry.step, errors)
            measured[name] = Measured(*of_entry, **kind, note=entry.note)
    return Benchmark(whole.inputs, whole.judge, reading.sensors, measured, tuple(reasons))


def simulate(
    operation: Operation,
    workload,
    of: Iterable[Implementation],
    *,
    seed: int,
    progress: Progress = iter,
) -> Benchmark:
    """Run implementations of an operation once each on the CPU, and judge their outputs.

    CUDA kernels run as CPU builds, Triton's kernels under its interpreter. Arguments as for
    benchmark.
    """
    whole = _Inputs(operation, workload, seed, "cpu")
    reasons: list[Reason] = []
    measured = {}
    of = list(of)
    with _built_ahead(whole, of):
        for item in progress(of):
            entry = _Entry(item.name, item, whole)
            if entry.prepare(reasons, {}) and entry.first_run(reasons):
                done = (entry.name, item, whole.inputs, entry.step, entry.found)
                measured[entry.name] = Measured(*done, simulated_s=entry.first_s)
    return Benchmark(whole.inputs, whole.judge, {}, measured, tuple(reasons))


@contextmanager
def _built_ahead(inputs: "_Inputs", of: list[Implementation]) -> Iterator[None]:
    """Compile the CPU builds, which take seconds each, on all cores while the body runs.

    The body prepares each again: it waits for a build that is not ready, and tells of one that
    failed.
    """
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for item in of:
            if item.library == "cuda":
                pool.submit(_Entry(item.name, item, inputs).prepare, [], {})
        yield
    finally:
        pool.shutdown(cancel_futures=True)


class _Inputs:
    """Inputs of a workload, and their judge."""

    def __init__(self, operation: Operation, workload, seed: int, device: str) -> None:
        self.inputs = operation.inputs(workload, Normal(seed, device))
        self.judge = judge_of(operation.name, self.inputs)


@dataclass(eq=False)
class _Entry:
    """The state of an implementation during a benchmark."""

    name: str
    implementation: Implementation
    inputs: _Inputs
    step: Step | None = None
    replay: Callable[[], object] | None = None
    note: str = field(default="")
    found: Any = None
    first_s: float = 0.0

    @property
    def timed(self) -> Callable[[], object]:
        """The timed function: the replay of a graph, or a call."""
        return self.replay or self.step.run

    def prepare(self, reasons: list[Reason], missing: Mapping[str, str]) -> bool:
        """Plan and compile. If that fails, add the reason to reasons and return False."""
        item = self.implementation
        reason = missing.get(item.library) or item.missing()
        if reason:
            return self._drop(reasons, "unavailable", reason)
        try:
            self.step = item.prepare(self.inputs.inputs)
        except (Refused, ValueError) as error:
            return self._drop(reasons, "refused", one_line(error))
        except (CompileError, RuntimeError) as error:
            return self._drop(reasons, "failed", one_line(error))
        return True

    def first_run(self, reasons: list[Reason]) -> bool:
        """Run for the first time, which may compile, and return whether the output is right."""
        try:
            poison(self.step)
            began_s = time.perf_counter()
            self.step.run()
            self.first_s = time.perf_counter() - began_s
        except Exception as error:  # each compiler and library has error classes of its own
            return self._drop(reasons, "failed", one_line(error))
        self.found = self.errors(None, reasons)
        return self.found is not None

    def capture(self) -> None:
        """Capture a CUDA graph of the step, or note why none can hold it."""
        with warnings.catch_warnings():
            # torch also warns that the graph of a failed capture is empty; the note gives the cause
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            try:
                # the step, not the graph, owns the memory that the launches use
                self.replay = timing.capture(self.step.run).replay
            except RuntimeError as error:
                self.note = f"not captured: {one_line(error)}"

    def errors(self, run: Callable[[], object] | None, reasons: list[Reason]) -> Any:
        """Return the errors of the outputs, or None if they are too large.

        run: fills the outputs first, after they were set to NaN; None to judge them as they are.
        """
        if run is not None:
            poison(self.step)
            run()
        errors = self.inputs.judge(
            self.step.outputs(), self.implementation.policy, self.step.forward
        )
        if errors.passed:
            return errors
        self._drop(reasons, "failed", errors.reason)
        return None

    def _drop(self, reasons: list[Reason], metric: str, words: str) -> bool:
        reasons.append(Reason(self.name, self.implementation, metric, words))
        return False


def poison(step: Step) -> None:
    """Fill the outputs with NaN, so that elements that the next run does not write are NaN."""
    for tensor in step.outputs():
        if tensor is not None:
            tensor.fill_(float("nan"))
