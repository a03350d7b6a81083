"""The error budget of a decode on given tensors, and the measured error of its kernel.

Example: error_budget(q, cache, NumericPolicy(out="fp32")).table(by="head") is the prediction;
measured_budget(q, cache, NumericPolicy(out="fp32")).rows(by="head") has the prediction and the
measurement; plots.error_waterfall and plots.budget_by_group draw them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels import ops
from labkernels.kernels.decode.inputs import DecodeInputs, problem_of
from labkernels.kernels.kernel import Instance, Kernel
from labkernels.kernels.registry import discover
from labkernels.numerics import metrics
from labkernels.numerics.arrays import as_float64
from labkernels.numerics.emulation.decode import SOURCES, errors_alone
from labkernels.numerics.emulation.summation_order import SummationOrder
from labkernels.numerics.error import budget as model
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.error.budget import ErrorBudget
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy

TOTAL = "total"


@dataclass(frozen=True, eq=False)
class Setting:
    """The arguments of a decode for the functions of labkernels.numerics."""

    problem: Problem
    policy: NumericPolicy
    order: SummationOrder


@dataclass(frozen=True, eq=False)
class MeasuredBudget:
    """A budget, the kernel's error, and the error of each source alone, in NumPy.

    Shapes: error [B, Hq, D]; alone [S, B, Hq, D], in the order of numerics.emulation.decode.SOURCES
    """

    budget: ErrorBudget
    error: np.ndarray
    alone: np.ndarray

    def rows(self, *, by: str) -> list[dict[str, Any]]:
        """One row per group (head or sample) and source; the kernel's, "total", come first."""
        budget = self.budget
        rows = comparison(TOTAL, self.error, budget.bias, budget.sigma**2, budget, by=by)
        terms = zip(SOURCES, self.alone, budget.biases, budget.variances, strict=True)
        for source, error, bias, variance in terms:
            rows += comparison(source, error, bias, variance, budget, by=by)
        return rows


def comparison(
    source: str, error, bias, variance, budget: ErrorBudget, *, by: str
) -> list[dict[str, Any]]:
    """Compare an error with its predicted bias and variance, one row per head or sample.

    Shapes: error, bias, variance [B, Hq, D]. Units: a share is relative to each element's predicted
    total variance, so the measured share of "total" is the mean of z^2. A bias is positive where
    errors have the sign of the output; bias_noise is the standard error of the measured bias.
    """
    sign, about, whole = np.sign(budget.o), error - bias, budget.sigma**2
    whole = np.where(whole > 0, whole, np.inf)
    columns = {
        "predicted_variance": metrics.mean(variance, by=by),
        "measured_variance": metrics.mean(about**2, by=by),
        "predicted_share": metrics.mean(variance / whole, by=by),
        "measured_share": metrics.mean(about**2 / whole, by=by),
        "predicted_bias": metrics.mean(bias * sign, by=by),
        "measured_bias": metrics.mean(error * sign, by=by),
        "bias_noise": _noise_of_mean(about * sign, by=by),
    }
    groups = len(columns["bias_noise"])
    return [
        {by: group, "source": source} | {name: float(x[group]) for name, x in columns.items()}
        for group in range(groups)
    ]


def _noise_of_mean(values: np.ndarray, *, by: str) -> np.ndarray:
    """Return the standard error of each group's mean; rows [D] are taken as independent samples.

    The elements of a row are not independent. Shapes: values [B, Hq, D] -> [Hq] or [B]
    """
    over = {"head": 0, "sample": 1}[by]
    means = values.mean(axis=2)
    count = means.shape[over]
    return means.std(axis=over, ddof=min(1, count - 1)) / np.sqrt(count)


def error_budget(q, cache, policy: NumericPolicy | None = None, **how) -> ErrorBudget:
    """Predict where the error of ops.decode comes from, on these tensors.

    Shapes: q [B, Hq, D]; cache a PagedKV. how: kernel, tile, keys_per_split, scale
    and target, as for ops.decode. Error: as for numerics.error.budget.error_budget.
    Raises: ValueError as ops.decode does, and for a kernel whose order of keys is not known.
    """
    found = setting(q, cache, policy, **how)
    return model.error_budget(found.problem, found.policy, found.order)


def measured_budget(q, cache, policy: NumericPolicy | None = None, **how) -> MeasuredBudget:
    """Predict the error of a decode, run it, and run every source alone in NumPy.

    Arguments and errors as for error_budget.
    """
    found, out = setting(q, cache, policy, **how), ops.decode(q, cache, policy=policy, **how).out
    budget = model.error_budget(found.problem, found.policy, found.order)
    alone = errors_alone(found.problem, found.policy, found.order)
    return MeasuredBudget(budget, metrics.difference(as_float64(out), budget.o), alone)


def decode_sigma(inputs: DecodeInputs, *, policy: NumericPolicy) -> np.ndarray:
    """Return the standard deviation that rounding gives each element of the output.

    Shapes: [B, Hq, D]; its numerics.metrics.rms is the expected RMSE of a head or a sample.
    Error: as for numerics.error.sigma.sigma.
    """
    return error_sigma.sigma(inputs.problem().in_numpy(), policy.of(inputs.dtype))


def setting(q, cache, policy: NumericPolicy | None = None, **how) -> Setting:
    """Return how ops.decode would round, and order the keys; arguments as for error_budget."""
    step = ops.decode_step(q, cache, policy=policy, **how)
    kernel = discover()[step.plan.kernel]
    policy = policy or kernel.policies[0]
    dtype = {"float16": "fp16", "bfloat16": "bf16"}[str(q.dtype).removeprefix("torch.")]
    sizes = {"head_dim": q.shape[2], "group": q.shape[1] // cache.kv_heads}
    instance = kernel.instance(kernel.shape(dtype=dtype, **sizes), policy, tile=step.plan.tile)
    problem = problem_of(q, cache, scale=how.get("scale") or q.shape[2] ** -0.5).in_numpy()
    if step.plan.splits_by_length:
        raise ValueError("keys_per_split = None with batch_invariant = True, allowed: a number")
    return Setting(problem, policy.of(dtype), summation_order(instance, step.plan.keys_per_split))


def summation_order(instance: Instance, keys_per_split: int) -> SummationOrder:
    """Return the order in which a CUDA kernel sums over its keys.

    Raises: ValueError naming the kernels whose order is known.
    """
    order = discover()[instance.kernel].summation_order(instance)
    if order is not None:
        return SummationOrder(keys_per_split=keys_per_split, **order)
    known = (name for name, kernel in discover().items() if _tells_its_order(kernel))
    raise ValueError(f"kernel = {instance.kernel!r}, allowed: {', '.join(known)}")


def _tells_its_order(kernel: Kernel) -> bool:
    instance = kernel.instance(kernel.shape(head_dim=kernel.head_dims[0]))
    return kernel.summation_order(instance) is not None
