"""The error budget of a decode on given tensors, and what its kernel really did.

Example: error_budget(q, cache, NumericPolicy(out="fp32")).table(by="head") is the prediction;
measured_budget(q, cache, NumericPolicy(out="fp32")).rows(by="head") has both, to be drawn by
plots.error_budget.
"""

from dataclasses import dataclass

import numpy as np

from labkernels.kernels.spec import Instance, NumericPolicy, discover
from labkernels.measure.accuracy import as_float64, problem_of
from labkernels.measure.expected import rounds_of
from labkernels.numerics import error_budget as model
from labkernels.numerics import metrics
from labkernels.numerics.emulated_decode import SOURCES, errors_alone
from labkernels.numerics.error_budget import ErrorBudget
from labkernels.numerics.problem import Problem
from labkernels.numerics.rounds import Rounds
from labkernels.numerics.schedule import Schedule

TOTAL = "total"
_LANES = 32


@dataclass(frozen=True, eq=False)
class Setting:
    """A decode as numerics takes it."""

    problem: Problem
    rounds: Rounds
    schedule: Schedule


@dataclass(frozen=True, eq=False)
class MeasuredBudget:
    """A budget, the kernel's error, and the error of each source alone, in NumPy.

    Shapes: error [B, Hq, D]; alone [S, B, Hq, D], in the order of numerics.emulated_decode.SOURCES.
    """

    budget: ErrorBudget
    error: np.ndarray
    alone: np.ndarray

    def rows(self, *, by: str) -> list[dict[str, object]]:
        """One row a group ("head" or "sample") and source, after those of the kernel, "total"."""
        budget = self.budget
        rows = total_rows(budget, self.error, by=by)
        terms = zip(SOURCES, self.alone, budget.biases, budget.variances, strict=True)
        for source, error, bias, variance in terms:
            rows += comparison(source, error, bias, variance, budget, by=by)
        return rows


def total_rows(budget: ErrorBudget, error: np.ndarray, *, by: str) -> list[dict[str, object]]:
    """Hold a kernel's error against its budget, a row a group: "total"."""
    return comparison(TOTAL, error, budget.bias, budget.sigma**2, budget, by=by)


def comparison(
    source: str, error, bias, variance, budget: ErrorBudget, *, by: str
) -> list[dict[str, object]]:
    """Hold an error against its predicted bias and variance, a row a head or a sample.

    Shapes: error, bias, variance [B, Hq, D]. Units: shares are of each element's predicted
    variance, so that the total's is z^2; biases are means along the sign of the output, bias_noise
    the standard error of the measured one.
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
    """Standard error of the mean of each group, whose rows [D] are independent, not their elements.

    Shapes: values [B, Hq, D] -> [Hq] or [B]
    """
    over = {"head": 0, "sample": 1}[by]
    means = values.mean(axis=2)
    count = means.shape[over]
    return means.std(axis=over, ddof=min(1, count - 1)) / np.sqrt(count)


def error_budget(q, cache, policy: NumericPolicy | None = None, **how) -> ErrorBudget:
    """Predict where the error of ops.decode comes from, on these tensors.

    Shapes: q [B, Hq, D]; cache a kernels.paged_kv.PagedKV. how: kernel, tile, keys_per_split, scale
    and target, as for ops.decode. Error: as numerics.error_budget.error_budget.
    Raises: ValueError as ops.decode, and for a kernel whose order of keys is not known.
    """
    found = setting(q, cache, policy, **how)
    return model.error_budget(found.problem, found.rounds, found.schedule)


def measured_budget(q, cache, policy: NumericPolicy | None = None, **how) -> MeasuredBudget:
    """Predict the error of a decode, run it, and run every source alone in NumPy.

    Arguments and errors as for error_budget.
    """
    from labkernels import ops

    out = ops.decode(q, cache, policy=policy, **how).out
    return budget_of(setting(q, cache, policy, **how), as_float64(out))


def budget_of(found: Setting, out: np.ndarray) -> MeasuredBudget:
    """Hold an output against the budget of its setting. Shapes: out [B, Hq, D] float64."""
    budget = model.error_budget(found.problem, found.rounds, found.schedule)
    alone = errors_alone(found.problem, found.rounds, found.schedule)
    return MeasuredBudget(budget, metrics.difference(out, budget.o), alone)


def setting(q, cache, policy: NumericPolicy | None = None, **how) -> Setting:
    """Return how ops.decode would round and order its keys; arguments as for error_budget."""
    from labkernels import ops

    step = ops.decode_step(q, cache, policy=policy, **how)
    spec = discover()[step.plan.kernel]
    policy = policy or spec.policies[0]
    dtype = {"float16": "fp16", "bfloat16": "bf16"}[str(q.dtype).removeprefix("torch.")]
    head_dim = q.shape[2]
    rows = spec.rows(q.shape[1] // cache.kv_heads) if spec.rows else 0
    tile = spec.tile_named(step.plan.tile, head_dim=head_dim, rows=rows, policy=policy)
    instance = Instance(spec.name, dtype, head_dim, rows, tile, policy)
    problem = problem_of(q, cache, scale=how.get("scale") or head_dim**-0.5)
    tensor_cores = spec.uses_tensor_cores(policy)
    rounds = rounds_of(policy, dtype, tensor_cores=tensor_cores, splits=step.plan.splits)
    return Setting(problem, rounds, schedule_of(instance, step.plan.keys_per_split))


def schedule_of(instance: Instance, keys_per_split: int) -> Schedule:
    """Return the order in which a CUDA kernel takes its keys.

    prefill_fma's turns are right, the order within a turn is not: its errors are as large, its bits
    are others. Raises: ValueError naming the kernels whose order is known.
    """
    bits = {"decode_mma": (1, 2), "decode_mma_n8": (0, 1, 2)}  # lanes t, and lanes g, hold keys
    tile = instance.tile
    way = {"keys_per_split": keys_per_split, "warps": tile.warps, "keys": tile.keys}
    if instance.kernel in bits:
        promoted = instance.policy.accumulate == "promoted"
        return Schedule(**way, sum_bits=bits[instance.kernel], promoted=promoted)
    if instance.kernel == "decode_fma":
        lanes = instance.head_dim // 8  # that share a key, 8 channels each
        groups = _LANES // lanes
        return Schedule(**way, groups=groups, sum_bits=_sum_bits(instance, lanes, groups))
    if instance.kernel == "prefill_fma":  # a row's State is the block's own; 16 columns of lanes
        way |= {"warps": 1, "sum_bits": (3, 2, 1, 0), "lane_channels": instance.head_dim}
        return Schedule(**way)
    allowed = ", ".join([*bits, "decode_fma", "prefill_fma"])
    raise ValueError(f"kernel = {instance.kernel!r}, allowed: {allowed}")


def _sum_bits(instance: Instance, lanes: int, groups: int) -> tuple[int, ...]:
    """Bits of a key that decode_fma's lanes tell apart, in the order of its shuffles."""
    rows, rounds = instance.rows, instance.tile.keys // groups
    same_key = lanes // min(rounds * rows, lanes) * rows  # lanes that hold scores of one key
    bits = []
    for mask in (16, 8, 4, 2, 1):
        if mask >= lanes:
            bits.append((mask // lanes).bit_length() - 1)
        elif mask >= same_key:
            bits.append((groups * mask // same_key).bit_length() - 1)
    return tuple(bits)
