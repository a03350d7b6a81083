"""What `labkernels tune` does and prints: the search, stage by stage, and its result."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from labkernels import hardware
from labkernels.hardware import Gpu
from labkernels.measure import tuner
from labkernels.measure.tuner import Candidate, Expected, Rejected, Run
from labkernels.units import format_time
from labkernels.workload import Prefill

Say = Callable[[str], None]


def tune(
    kernel: str, workload: Prefill, *, gpu: str, top: int, repeats: int, seed: int, say: Say
) -> str:
    """Search a kernel's tiles for a workload, and measure the `top` best unless top is 0.

    Raises: ValueError naming the argument, its value and what is allowed.
    """
    if top < 0:
        raise ValueError(f"top = {top}, allowed: 0 or more")
    spec = tuner.tunable(kernel)
    target = _target(gpu, measured=top > 0)
    if not spec.runs_on(target.arch):
        raise ValueError(f"gpu = {target.key!r} is {target.arch}, allowed: {spec.needs}")
    listed = tuner.space(spec, workload)
    say(f"{spec.name} for {target.name}: {workload.label}\n{len(listed)} tiles in its space")
    fitting, rejected = tuner.by_ledger(listed, target)
    say(f"{len(rejected)} rejected by the ledger{_causes(rejected)}")
    candidates = _compile(fitting, target, say)
    expected = tuner.ranked(candidates, workload, target)
    runs = []
    if top and expected:
        chosen = [item.candidate for item in expected[:top]]
        runs = tuner.measure(chosen, workload, repeats=repeats, seed=seed, say=say)
    return "\n\n".join(_tables(expected, runs, workload, in_list(spec, workload)))


def in_list(spec, workload: Prefill) -> set[str]:
    """Return the labels of the tiles that the kernel's own list has for long requests."""
    tiles = spec.tiles(workload.head_dim, max(workload.q_lens), spec.policies[0])
    return {tile.label for tile in tiles}


def _target(gpu: str, *, measured: bool) -> Gpu:
    if not measured:
        return hardware.gpu(gpu or "h200")
    from labkernels.cuda import device

    reason = device.available()
    if reason:
        raise ValueError(f"there is no GPU to measure on ({reason}); allowed: --no-gpu")
    live = device.planning_gpu(0)
    if gpu and hardware.gpu(gpu).arch != live.arch:
        raise ValueError(f"gpu = {gpu!r}, allowed here: {live.key}; another one with --no-gpu")
    return live


def _compile(fitting: list, gpu: Gpu, say: Say) -> list[Candidate]:
    candidates, rejected = [], []
    for count, found in enumerate(tuner.by_compiler(fitting, gpu), 1):
        (rejected if isinstance(found, Rejected) else candidates).append(found)
        if count % 10 == 0 and count < len(fitting):
            say(f"compiled {count} of {len(fitting)}")
    say(f"{len(rejected)} of {len(fitting)} rejected by the compiler{_causes(rejected)}")
    return candidates


def _causes(rejected: Iterable[Rejected]) -> str:
    by_cause = defaultdict(list)
    for item in rejected:
        by_cause[item.cause].append(item)
    lines = [
        f"\n  {len(items):3} {cause}; {items[0].instance.tile.label}: {items[0].reason}"
        for cause, items in sorted(by_cause.items(), key=lambda pair: -len(pair[1]))
    ]
    return "".join(lines)


def _tables(
    expected: list[Expected], runs: list[Run], workload: Prefill, listed: set[str]
) -> list[str]:
    if not expected:
        return ["no tile is left: the ledger and the compiler rejected all"]
    head = f"{'tile':<24}{'registers':>10}{'blocks/SM':>10}{'bound':>7}{'expected':>11}"
    lines = [head + (f"{'measured':>11}{'TFLOP/s':>9}{'verdict':>9}" if runs else "")]
    measured = {run.candidate: run for run in runs}
    for item in expected:
        label = item.candidate.instance.tile.label + ("" if _is_listed(item, listed) else " *")
        line = f"{label:<24}{item.candidate.registers:>10}{item.candidate.blocks_per_sm:>10}"
        line += f"{item.time.bound:>7}{format_time(item.time.time_s):>11}"
        lines.append(line + _measured(measured.get(item.candidate), workload))
    lines.append("* is not in the kernel's own list of tiles")
    parts = ["\n".join(lines)]
    right = [run for run in runs if run.errors.passed]
    if right:
        best = min(right, key=lambda run: run.times.median_s)
        time_s = best.times.median_s
        parts.append(f"best: {best.candidate.instance.tile.label}, {format_time(time_s)}")
    return parts


def _is_listed(item: Expected, listed: set[str]) -> bool:
    return item.candidate.instance.tile.label in listed


def _measured(run: Run | None, workload: Prefill) -> str:
    if run is None:
        return ""
    time_s = run.times.median_s
    verdict = "passed" if run.errors.passed else "FAILED"
    return f"{format_time(time_s):>11}{workload.flops / time_s / 1e12:>9.0f}{verdict:>9}"
