"""`labkernels run`: one kernel, once, on this machine: its time and its error."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

from labkernels.cli.options import DONE, FAILED, add_shape, add_tokens, workload_of
from labkernels.units import format_rate, format_time

if TYPE_CHECKING:
    from labkernels.kernels.call import Plan
    from labkernels.kernels.kernel import Kernel
    from labkernels.kernels.workload import Workload
    from labkernels.measure.judge.judge import Errors
    from labkernels.policy import NumericPolicy

GPU_KEYS, CPU_KEYS = 2048, 64
HELP = "run a kernel here and compare with float64"
DESCRIPTION = """\
Run a kernel of any operation on random inputs, on this machine's GPU or as its CPU
build, and compare it with float64.

examples:
  labkernels run decode_mma --batch 4 --kv-len 2048
  labkernels run decode_fma --heads 64/8 --dtype fp16
  labkernels run decode_mma --kv-dtype e4m3             a cache of 8 bits
  labkernels run triton_decode --tensor-cores off --kv-len 64
  labkernels run prefill_mma --batch 2 --kv-len 256 --causal
  labkernels run mla_mma --head-dim 576 --heads 16/1 --kv-len 300
  labkernels run backward_mma --batch 2 --kv-len 64 --heads 8/8
  labkernels run decode_mma --window 1023 --head-dim 256 --heads 16/8    Gemma 3: 1,024 keys
  labkernels run prefill_mma --causal --window 127 --sinks --head-dim 64 --heads 64/8    GPT-OSS
  labkernels run decode_mma --cpu --checks              with races and uninitialised reads reported
"""


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the workload, and where and how to run."""
    add_shape(sub)
    add_tokens(sub)
    sub.add_argument("--batch", type=int, default=4, help="requests (default 4)")
    keys = f"keys per request (default {GPU_KEYS}, and {CPU_KEYS} for the CPU build)"
    sub.add_argument("--kv-len", type=int, default=None, help=keys)
    sub.add_argument("--tensor-cores", default="", help="on or off, where a kernel has both")
    sub.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    sub.add_argument("--repeats", type=int, default=3, help="timed repeats (default 3)")
    sub.add_argument("--cpu", action="store_true", help="the CPU build, even if there is a GPU")
    checker = "CPU build of a CUDA kernel, with its race checker on"
    sub.add_argument("--checks", action="store_true", help=checker)


def run(options: argparse.Namespace) -> int:
    """Run the kernel on random inputs, compare its output with float64, and print what it did.

    Raises: ValueError naming the argument, its value and what is allowed.
    """
    from labkernels.kernels.operation import operations
    from labkernels.kernels.random_inputs import Normal
    from labkernels.measure.benchmark import poison
    from labkernels.measure.judge.judge import judge_of

    kernel, repeats, checks = options.kernel, options.repeats, options.checks
    if repeats < 2:
        raise ValueError(f"repeats = {repeats}, allowed: 2 or more")
    device = "cpu" if options.cpu or checks or not _gpu_works() else "cuda"
    if options.kv_len is None:
        options.kv_len = CPU_KEYS if device == "cpu" else GPU_KEYS
    spec = _kernel(kernel)
    if checks and spec.language != "cuda":
        raise ValueError(f"checks = True, allowed: a CUDA kernel; {kernel} is in {spec.language}")
    workload = workload_of(spec, options)
    policy = _policy(spec, options.tensor_cores)
    of = operations()[spec.operation]
    inputs = of.inputs(workload, Normal(options.seed, device))
    how = {"kernel": kernel, "tile": options.tile or None, "policy": policy, "checks": checks}
    step = of.step(inputs, **how)
    poison(step)
    step.run()
    errors = judge_of(of.name, inputs)(step.outputs(), policy)
    time_s = _time(step.run, device, repeats)
    way = "on" if policy.tensor_cores else "off"
    print(f"{kernel}, tensor cores {way}, on {step.plan.machine}: {workload.label}")
    print(_plan_line(step.plan), _time_line(time_s, repeats, workload, device), sep="\n")
    print(*_error_lines(errors), sep="\n")
    if checks:
        print("checks races, uninitialised reads and bounds of every access: none found")
    return DONE if errors.passed else FAILED


def _plan_line(plan: Plan) -> str:
    return (
        f"plan   tile {plan.tile}, {plan.splits} split(s) of {plan.keys_per_split} keys, "
        f"{plan.blocks} blocks, {plan.launches} launch(es)"
    )


def _time_line(time_s: float, repeats: int, workload: Workload, device: str) -> str:
    line = f"time   {format_time(time_s)} median of {repeats}"
    if device == "cpu":
        return f"{line}, of a simulation: it says nothing of a GPU"
    moved, done = format_rate(workload.bytes / time_s), workload.flops / time_s / 1e12
    return f"{line}, {moved} of all inputs and outputs, {done:.3g} TFLOP/s"


def _error_lines(errors: Errors) -> list[str]:
    from labkernels.measure.judge.copies import CopyErrors
    from labkernels.measure.judge.outputs import RMSE_RATIO_MAX
    from labkernels.measure.judge.outputs import Errors as OutputErrors

    word = "passed" if errors.passed else "FAILED"
    if isinstance(errors, CopyErrors):
        return [
            f"rows   {errors.reason or 'every new row stands in its page, bit for bit'}: {word}"
        ]
    if not isinstance(errors, OutputErrors):  # gradients have a bound per element
        return [f"bound  {errors.reason}: {word}"]
    return [
        f"error  rmse {errors.rmse:.3g}, bias {errors.bias:.2g}, max {errors.max_abs:.3g} "
        f"against float64; lse2 max {errors.lse2_max_abs:.2g}",
        f"bound  worst error {errors.bound_ratio:.3g} of what rounding can do (1 is allowed), "
        f"worst head's RMSE {errors.rmse_ratio:.3g} of the expected "
        f"({RMSE_RATIO_MAX:g} is allowed): {word}",
    ]


def _kernel(name: str) -> Kernel:
    """Return a kernel, unless it uses torch's own exponential, for which there is no bound."""
    from labkernels.kernels.registry import discover

    known = {spec.name: spec for spec in discover().values() if spec.policies[0].exp2 != "library"}
    if name not in known:
        raise ValueError(f"kernel = {name!r}, allowed: {', '.join(known)}")
    return known[name]


def _policy(spec: Kernel, tensor_cores: str) -> NumericPolicy:
    """Return the kernel's first policy with tensor cores "on" or "off", or just its first."""
    words = {"on" if p.tensor_cores else "off": p for p in reversed(spec.policies)}
    if not tensor_cores:
        return spec.policies[0]
    if tensor_cores not in words:
        allowed = ", ".join(sorted(words))
        raise ValueError(f"tensor_cores = {tensor_cores!r}, allowed for {spec.name}: {allowed}")
    return words[tensor_cores]


def _gpu_works() -> bool:
    from labkernels.cuda.gpu import device

    return device.available() is None


def _time(action, device: str, repeats: int) -> float:
    """Return the median seconds: device time on a GPU, wall time of the CPU build."""
    if device == "cuda":
        from labkernels.measure import timing

        replay = timing.capture(action).replay
        return timing.time_interleaved({"kernel": replay}, repeats=repeats)["kernel"].median_s
    times_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        action()
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)
