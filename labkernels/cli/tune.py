"""`labkernels tune`: the search for a kernel's best tile, stage by stage, and its result."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any

from labkernels import hardware
from labkernels.cli.options import DONE, add_heads, add_scheduler, add_variant, variant_of
from labkernels.hardware import Gpu
from labkernels.units import format_time

if TYPE_CHECKING:
    from labkernels.kernels.prefill.workload import Prefill
    from labkernels.measure.tuning.search import Candidate, Expected, Rejected, Run

TUNED_CHANNELS = 2048  # heads x head_dim, as in FlashAttention's papers
HELP = "search a kernel's best tile"
DESCRIPTION = """\
Search a prefill kernel's tiles for a workload, of more tiles than the kernel lists.

The ledger rejects what cannot fit, and says with which line it broke; the compiler rejects spilled
registers and wgmma that cannot overlap; a model of products, exponentials, shared memory and whole
rounds of blocks orders what is left; the GPU measures the first few. All but the last needs no GPU.

examples:
  labkernels tune prefill_mma --head-dim 128            measure the model's best eight
  labkernels tune prefill_mma --no-gpu                  stop before the measuring
  labkernels tune prefill_mma --no-gpu --gpu a100       for another GPU
  labkernels tune prefill_mma --causal --seqlen 512 --batch 32 --top 20
  labkernels tune prefill_mma --causal --window 1023 --head-dim 256 --heads 16/8   as in Gemma 3
"""

say = partial(print, flush=True)


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the workload, and how far to search."""
    sub.add_argument("kernel", help="a kernel that lists its tiles, such as prefill_mma")
    sub.add_argument("--head-dim", type=int, default=128, help="elements per head (default 128)")
    sub.add_argument("--dtype", default="bf16", help="fp16 or bf16 (default bf16)")
    sub.add_argument("--batch", type=int, default=4, help="requests (default 4)")
    sub.add_argument("--seqlen", type=int, default=4096, help="tokens per request (default 4096)")
    add_heads(sub, None, "query heads / KV heads (default: 2048 channels, as many KV heads)")
    sub.add_argument("--page-size", type=int, default=0, help="keys per page (default 0: ragged)")
    add_variant(sub)
    sub.add_argument("--top", type=int, default=8, help="tiles to measure (default 8)")
    sub.add_argument("--no-gpu", action="store_true", help="stop before the measuring")
    sub.add_argument("--gpu", default="", help="with --no-gpu: h200, a100, ... (default h200)")
    sub.add_argument("--repeats", type=int, default=10, help="timed repeats (default 10)")
    sub.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    add_scheduler(sub)


def run(options: argparse.Namespace) -> int:
    """Search, and print each stage.

    Raises: ValueError naming the argument, its value and what is allowed.
    """
    from labkernels.experiments import workers
    from labkernels.kernels.prefill.workload import Prefill
    from labkernels.measure.tuning import search

    spec = search.tunable(options.kernel)
    heads = max(1, TUNED_CHANNELS // max(1, options.head_dim))
    lengths = (options.seqlen,) * options.batch
    workload = Prefill(
        lengths,
        lengths,
        *(options.heads or (heads, heads)),
        options.head_dim,
        dtype=options.dtype,
        page_size=options.page_size or None,
        variant=variant_of(options, spec),
    )
    with workers.executor(options.scheduler, alone=False) as pool:
        print(f"\n{_search(options, spec, workload, pool)}")
    return DONE


def _search(options: argparse.Namespace, spec: Any, workload: Prefill, pool: Executor) -> str:
    """Return the tables of a search, and measure the `top` best tiles unless there is no GPU.

    pool: compiles, and has the GPU to measure on.
    """
    from labkernels.experiments import workers
    from labkernels.measure.tuning import search

    top = 0 if options.no_gpu else options.top
    if top < 0:
        raise ValueError(f"top = {top}, allowed: 0 or more")
    target = _target(options.gpu, pool, measured=top > 0)
    if not spec.needs.include(target.arch):
        raise ValueError(f"gpu = {target.key!r} is {target.arch}, allowed: {spec.needs}")
    listed = search.space(spec, workload)
    say(f"{spec.name} for {target.name}: {workload.label}\n{len(listed)} tiles in its space")
    fitting, rejected = search.by_ledger(listed, target)
    say(f"{len(rejected)} rejected by the ledger{_causes(rejected)}")
    candidates = _compile(fitting, target, pool)
    expected = search.ranked(candidates, workload, target)
    runs = []
    if top and expected:
        chosen = [item.candidate for item in expected[:top]]
        say(f"{len(chosen)} tiles are timed in {options.repeats} turns")
        how = {"repeats": options.repeats, "seed": options.seed}
        runs = pool.submit(workers.alone, search.measure, chosen, workload, **how).result()
    return "\n\n".join(_tables(expected, runs, workload, search.in_list(spec, workload)))


def _target(gpu: str, pool: Executor, *, measured: bool) -> Gpu:
    if not measured:
        return hardware.gpu(gpu or "h200")
    from labkernels.cuda.gpu import device

    reason = pool.submit(device.available).result()
    if reason:
        raise ValueError(f"there is no GPU to measure on ({reason}); allowed: --no-gpu")
    live = pool.submit(device.planning_gpu, 0).result()
    if gpu and hardware.gpu(gpu).arch != live.arch:
        raise ValueError(f"gpu = {gpu!r}, allowed here: {live.key}; another one with --no-gpu")
    return live


def _compile(fitting: list, gpu: Gpu, pool: Executor) -> list[Candidate]:
    from labkernels.measure.tuning import search

    candidates, rejected = [], []
    for count, found in enumerate(search.by_compiler(fitting, gpu, pool), 1):
        (rejected if isinstance(found, search.Rejected) else candidates).append(found)
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
        label = item.candidate.instance.tile.label
        label += "" if label in listed else " *"
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


def _measured(run: Run | None, workload: Prefill) -> str:
    if run is None:
        return ""
    time_s = run.times.median_s
    verdict = "passed" if run.errors.passed else "FAILED"
    return f"{format_time(time_s):>11}{workload.flops / time_s / 1e12:>9.0f}{verdict:>9}"
