"""Compare predicted and measured errors of the decode kernels, by head and source of rounding."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from labkernels.experiments import experiment
from labkernels.experiments.experiment import Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.decode.inputs import DISTRIBUTIONS, distributed_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure import error_budget as measure
from labkernels.measure.error_budget import MeasuredBudget, Setting
from labkernels.numerics import metrics
from labkernels.numerics.arrays import as_float64
from labkernels.numerics.emulation.decode import SOURCES, errors_alone
from labkernels.numerics.error import budget as model
from labkernels.numerics.error.budget import ErrorBudget
from labkernels.policy import CUDA_CORES, TENSOR_CORES, NumericPolicy
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/error_calibration.parquet"

Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 8, 2, 128, 16
DTYPES = ("fp16", "bf16")
ON, OFF = (replace(base, out="fp32") for base in (TENSOR_CORES, CUDA_CORES))
STORED_ON, STORED_OFF = TENSOR_CORES, CUDA_CORES
TWO_PARTS, PROMOTED = replace(ON, p="input_x2"), replace(ON, accumulate="promoted")
FAST_EXP2 = replace(OFF, exp2="poly3")
MMA_N8, MMA, FMA = "decode_mma_n8", "decode_mma", "decode_fma"


@dataclass(frozen=True)
class Size:
    """The number of requests in a cell, their keys, and the keys per split."""

    samples: int
    kv_len: int
    keys_per_split: int


# If all channels of a row err together, the relative uncertainty of a spread is 1 / sqrt(2 rows),
# 9 % for 64 rows. Peaky rows, in which a few keys have all the weight, differ more and need more
# rows.
WHOLE, PEAKY = Size(64, 1024, 1024), Size(256, 256, 256)
SPLIT, PAIRS = Size(32, 1024, 256), Size(32, 1024, 1024)
LONG = Size(8, 8192, 8192)  # the bias grows with the length of a chain of sums
SMALL = Size(2, 200, 200)  # every machine can recompute cells of this size within a second


@dataclass(frozen=True)
class Cell:
    """One kernel policy on one family of inputs, or its difference from the policy `other`.

    source: the source of rounding in which the two differ; mma: the kernel for policies on tensor
    cores.
    """

    size: Size
    family: str
    dtype: str
    policy: NumericPolicy
    other: NumericPolicy | None = None
    source: str = measure.TOTAL
    mma: str = MMA_N8

    @property
    def kernel(self) -> str:
        """The kernel that runs the policy."""
        return kernel_of(self.policy, self.mma)

    @property
    def by_source(self) -> bool:
        """Whether every source is also run alone."""
        return self.other is None and self.policy in (ON, OFF) and self.size != LONG


def kernel_of(policy: NumericPolicy, mma: str) -> str:
    """Return the kernel that runs a policy: `mma` if the policy uses tensor cores."""
    return FMA if policy.accumulate == "fma" else mma


def grid(size: Size | None = None) -> Iterator[Cell]:
    """Yield every cell of the experiment, or those of one size; the SMALL ones come last."""
    return (cell for cell in _all_cells() if size in (None, cell.size))


def benches(chosen: Iterable[Cell]) -> list[list[Cell]]:
    """Group the cells that share their inputs."""
    shared: dict[tuple, list[Cell]] = {}
    for cell in chosen:
        shared.setdefault((cell.size, cell.family, cell.dtype, cell.mma), []).append(cell)
    return list(shared.values())


def _all_cells() -> Iterator[Cell]:
    for dtype in DTYPES:
        yield Cell(LONG, "mean-shifted", dtype, ON)
        yield Cell(LONG, "mean-shifted", dtype, ON, PROMOTED, "accumulation")
        for family in DISTRIBUTIONS:
            for policy in (ON, OFF, STORED_ON, STORED_OFF, TWO_PARTS):
                yield Cell(_whole(family), family, dtype, policy)
        for family in ("normal", "peaky"):  # the same arithmetic in another order
            for policy in (ON, STORED_ON):
                yield Cell(_whole(family), family, dtype, policy, mma=MMA)
        yield from _differences(PAIRS, "normal", dtype)
        yield from _differences(PAIRS, "mean-shifted", dtype)
        yield Cell(WHOLE, "normal", dtype, FAST_EXP2)
        yield Cell(SPLIT, "normal", dtype, ON)
        yield Cell(SPLIT, "mean-shifted", dtype, OFF)
    for dtype in DTYPES:
        for family in DISTRIBUTIONS:
            for policy in (ON, OFF):
                yield Cell(SMALL, family, dtype, policy)
        yield Cell(SMALL, "normal", dtype, ON, mma=MMA)
        yield from _differences(SMALL, "mean-shifted", dtype)


def _whole(family: str) -> Size:
    return PEAKY if family == "peaky" else WHOLE


def _differences(size: Size, family: str, dtype: str) -> Iterator[Cell]:
    """Yield pairs of policies that differ in one source, which isolates it on the hardware."""
    yield Cell(size, family, dtype, STORED_ON, ON, "store")
    yield Cell(size, family, dtype, ON, TWO_PARTS, "p")
    yield Cell(size, family, dtype, ON, PROMOTED, "accumulation")
    yield Cell(size, family, dtype, FAST_EXP2, OFF, "exp2")


class Bench:
    """The inputs and outputs that a group of cells shares, on a device ("cpu": the CPU build).

    The outputs, and so all rows, have the same bits on every device.
    """

    def __init__(self, cell: Cell, *, seed: int, device: str):
        size, dtype, self.mma = cell.size, cell.dtype, cell.mma
        lengths = (size.kv_len,) * size.samples
        workload = Decode(lengths, Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, dtype)
        self.case = distributed_inputs(cell.family, workload, ExactNormal(seed, device))
        self.way = {"keys_per_split": size.keys_per_split, "scale": self.case.scale}
        self.setting, self.budget, self.out = map(cache, (self._setting, self._budget, self._out))

    def rows(self, cell: Cell) -> list[Row]:
        """Return the rows of one cell of the group, without their provenance."""
        budget, out = self.budget(cell.policy), self.out(cell.policy)
        if cell.other is not None:
            error = metrics.difference(out, self.out(cell.other))
            found = _difference_rows(cell.source, budget, self.budget(cell.other), error)
        elif cell.by_source:
            setting = self.setting(cell.policy)
            alone = errors_alone(setting.problem, setting.policy, setting.order)
            measured = MeasuredBudget(budget, metrics.difference(out, budget.o), alone)
            found = measured.rows(by="head")
        else:
            error = metrics.difference(out, budget.o)
            found = measure.total_rows(budget, error, by="head")
        return [columns(cell, row["source"]) | row for row in found]

    def _how(self, policy: NumericPolicy) -> dict[str, Any]:
        return self.way | {"kernel": kernel_of(policy, self.mma), "policy": policy}

    def _setting(self, policy: NumericPolicy) -> Setting:
        return measure.setting(self.case.q, self.case.cache, **self._how(policy))

    def _budget(self, policy: NumericPolicy) -> ErrorBudget:
        if policy.out == "input":  # the budget for an fp32 output, plus the store
            budget = self.budget(replace(policy, out="fp32"))
            return budget.stored(self.case.workload.dtype)
        setting = self.setting(policy)
        return model.error_budget(setting.problem, setting.policy, setting.order)

    def _out(self, policy: NumericPolicy):
        from labkernels import ops

        return as_float64(ops.decode(self.case.q, self.case.cache, **self._how(policy)).out)


def rows_of(chosen: Sequence[Cell], seed: int, device: str) -> list[Row]:
    """Return the rows of cells that share their inputs."""
    bench = Bench(chosen[0], seed=seed, device=device)
    return [row for cell in chosen for row in bench.rows(cell)]


def _difference_rows(source: str, one: ErrorBudget, other: ErrorBudget, error) -> list[Row]:
    """Compare the difference of two outputs with the difference of their budgets.

    Errors before the source are equal in both and cancel; roundings after it act on different
    numbers and do not.
    """
    term = SOURCES.index(source)
    bias, variance = one.biases[term] - other.biases[term], one.variances[term]
    if source == "store":  # both outputs have the same quotient; one rounds it a second time
        variance = variance - other.variances[term]
    else:
        variance = variance + other.variances[term]
        # l sums P before it is rounded
        first = SOURCES.index("accumulation") if source == "p" else term + 1
        later = range(first, len(SOURCES))
        bias = bias + sum(one.biases[s] - other.biases[s] for s in later)
        variance = variance + sum(one.variances[s] + other.variances[s] for s in later)
    return measure.comparison(source, error, bias, variance, one, by="head")


def columns(cell: Cell, source: str) -> Row:
    """Return the columns that identify a cell's row."""
    is_output = source == measure.TOTAL or cell.other is not None
    return {
        "kernel": cell.kernel,
        "backend": "cuda" if is_output else "numpy",
        "tensor_cores": "off" if cell.policy.accumulate == "fma" else "on",
        "policy": cell.policy.label,
        "other_policy": cell.other.label if cell.other else "",
        "dtype": cell.dtype,
        "family": cell.family,
        "samples": cell.size.samples,
        "kv_len": cell.size.kv_len,
        "keys_per_split": cell.size.keys_per_split,
    }


def cells(options: Options) -> Iterator[experiment.Cell]:
    """Yield groups of cells that share their inputs; `quick` keeps the small ones."""
    for chosen in benches(grid(SMALL if options.quick else None)):
        first = chosen[0]
        label = f"{first.family}/{first.dtype}/{first.size.samples} x {first.size.kv_len}"
        yield experiment.Cell(f"{label} by {first.size.keys_per_split}/{first.mma}", chosen)


def rows(cell: experiment.Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Run cells on this machine's GPU, or as CPU builds without one."""
    found = rows_of(cell.of, recording.options.seed, recording.device)
    recording.tell(f"{len(cell.of)} policies, {len(found)} rows")
    yield from ((DATA_FILE, row) for row in found)


EXPERIMENT = Experiment(
    "error_calibration",
    "The error model compared with the kernels, by source, head and family of inputs",
    {DATA_FILE: schema.TABLES["error_calibration"]},
    cells,
    rows,
    needs_gpu=False,
    renewed=(DATA_FILE,),
    whole=True,
    alone=False,
)
