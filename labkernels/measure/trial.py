"""One kernel, once, on this machine: its time and its error, as `labkernels run` shows them."""

import statistics
import time
from dataclasses import dataclass

from labkernels.kernels.spec import KernelSpec, NumericPolicy, discover
from labkernels.measure import accuracy, timing
from labkernels.measure.cases import decode_case
from labkernels.units import format_rate, format_time
from labkernels.workload import Decode


@dataclass(frozen=True)
class Trial:
    """What a kernel did: a text that says it, and whether every element kept its bound."""

    text: str
    passed: bool


def run(
    kernel: str,
    workload: Decode,
    *,
    tile: str = "",
    tensor_cores: str = "",
    seed: int = 0,
    repeats: int = 3,
    cpu: bool = False,
    checks: bool = False,
) -> Trial:
    """Run a decode kernel on random inputs and hold it against float64.

    Raises: ValueError naming the argument, its value and what is allowed.
    """
    from labkernels import ops

    if repeats < 2:
        raise ValueError(f"repeats = {repeats}, allowed: 2 or more")
    device = "cpu" if cpu or not _gpu_works() else "cuda"
    spec = _decoder(kernel)
    policy = _policy(spec, tensor_cores)
    case = decode_case(workload, seed=seed, device=device)
    step = ops.decode_step(
        case.q,
        case.cache,
        kernel=kernel,
        tile=tile or None,
        policy=policy,
        scale=case.scale,
        checks=checks,
    )
    for tensor in (step.out, step.lse2):
        tensor.fill_(float("nan"))
    step.run()
    on = spec.uses_tensor_cores(policy)
    chain = accuracy.Chain(on, policy.denominator, policy.exp2)
    reference = accuracy.decode_reference(case.q, case.cache, scale=case.scale)
    bound = accuracy.decode_bound(case.q, case.cache, chain, scale=case.scale, dtype=workload.dtype)
    errors = accuracy.judge(step.out, step.lse2, reference, bound)
    time_s = _time(step.run, device, repeats)
    plan = step.plan
    lines = [
        f"{kernel}, tensor cores {'on' if on else 'off'}, on {plan.machine}: {workload.label}",
        f"plan   tile {plan.tile}, {plan.splits} split(s) of {plan.keys_per_split} keys, "
        f"{plan.blocks} blocks, {plan.launches} launch(es)",
        f"time   {format_time(time_s)} median of {repeats}, "
        f"{format_rate(workload.kv_bytes / time_s)} of K and V",
        f"error  rmse {errors.rmse:.3g}, bias {errors.bias:.2g}, max {errors.max_abs:.3g} "
        f"against float64; lse2 max {errors.lse2_max_abs:.2g}",
        f"bound  worst error {errors.bound_ratio:.3g} of what rounding can do (1 is allowed), "
        f"worst head's RMSE {errors.rmse_ratio:.3g} of the expected "
        f"({accuracy.RMSE_RATIO_MAX:g} is allowed): " + ("passed" if errors.passed else "FAILED"),
    ]
    return Trial("\n".join(lines), errors.passed)


def _decoder(kernel: str) -> KernelSpec:
    """Return a decode kernel that rounds as the bounds know it."""
    known = {
        spec.name: spec
        for spec in discover().values()
        if spec.family == "decode" and spec.policies[0].exp2 != "library"
    }
    if kernel not in known:
        raise ValueError(f"kernel = {kernel!r}, allowed: {', '.join(known)}")
    return known[kernel]


def _policy(spec: KernelSpec, tensor_cores: str) -> NumericPolicy:
    """Return the kernel's first policy with tensor cores "on" or "off", or just its first."""
    words = {"on" if spec.uses_tensor_cores(p) else "off": p for p in reversed(spec.policies)}
    if not tensor_cores:
        return spec.policies[0]
    if tensor_cores not in words:
        allowed = ", ".join(sorted(words))
        raise ValueError(f"tensor_cores = {tensor_cores!r}, allowed for {spec.name}: {allowed}")
    return words[tensor_cores]


def _gpu_works() -> bool:
    from labkernels.cuda import device

    return device.available() is None


def _time(action, device: str, repeats: int) -> float:
    """Return the median seconds: device time on a GPU, wall time of the CPU build."""
    if device == "cuda":
        replay = timing.capture(action).replay
        return timing.time_interleaved({"kernel": replay}, repeats=repeats)["kernel"].median_s
    times_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        action()
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)
