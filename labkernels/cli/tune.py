"""`labkernels tune`: the search for a kernel's best tile, stage by stage, and its result."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any

from labkernels import hardware
from labkernels.cli import budget
from labkernels.cli.options import (
    DONE,
    add_heads,
    add_scheduler,
    add_shape,
    add_tokens,
    head_dim_of,
    workload_of,
)
from labkernels.hardware import Gpu
from labkernels.units import KiB, format_rate, format_time

if TYPE_CHECKING:
    from labkernels.kernels.workload import Workload
    from labkernels.measure.tuning.search import Candidate, Expected, Rejected, Run

TUNED_CHANNELS = 2048  # heads x head_dim, as in FlashAttention's papers
USUAL = {"batch": 57, "kv_len": 8192, "heads": (32, 8), "page_size": 16}  # with one token
LEGEND = """\
* is not in the kernel's own list of tiles
in brackets: what the formulas of registers and of shared memory predict"""
PLANNED = """\
A call chooses its tile without its batch or lengths: this table is of {} alone.
The keys per split, and so the splits, are planned for each tile."""
HELP = "search a kernel's best tile"
DESCRIPTION = """\
Search a CUDA kernel's tiles for a workload; of decode and prefill, more tiles than a kernel lists.

The ledger rejects what cannot fit, and says with which line it broke; the compiler rejects spilled
registers and wgmma that cannot overlap; the GPU measures the first few. All but the last needs no
GPU. For prefill_mma and prefill_wgmma a model of products, exponentials, shared memory and whole
rounds of blocks gives the order. Of other kernels the own tiles come first, and then those that
fill most of an SM's shared memory.

examples:
  labkernels tune prefill_mma --head-dim 128            measure the model's best eight
  labkernels tune prefill_mma --no-gpu                  stop before the measuring
  labkernels tune prefill_mma --no-gpu --gpu a100       for another GPU
  labkernels tune prefill_mma --causal --seqlen 512 --batch 32 --top 20
  labkernels tune decode_mma --kv-dtype e4m3 --no-gpu   a cache of 8 bits
  labkernels tune decode_mma_n8 --batch 1 --kv-len 131072
  labkernels tune prefill_mma --causal --window 1023 --head-dim 256 --heads 16/8   as in Gemma 3
"""

say = partial(print, flush=True)


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the workload, and how far to search."""
    add_shape(sub, usual=False)
    sub.add_argument("--batch", type=int, help="requests (default 4; of a decode 57)")
    keys = "keys per request (default 4096; of a decode 8192)"
    sub.add_argument("--seqlen", "--kv-len", dest="kv_len", type=int, metavar="KEYS", help=keys)
    of_heads = "query heads / KV heads (default: 2048 channels, as many KV heads; of a decode 32/8)"
    add_heads(sub, None, of_heads)
    pages = "keys per page (default: ragged; of a decode 16)"
    sub.add_argument("--page-size", type=int, help=pages)
    add_tokens(sub)
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
    from labkernels.kernels.operation import operations
    from labkernels.kernels.workload import Tokens
    from labkernels.measure.tuning import search

    spec = search.tunable(options.kernel)
    many = issubclass(operations()[spec.operation].workload, Tokens)
    heads = max(1, TUNED_CHANNELS // max(1, head_dim_of(spec, options)))
    usual = {"batch": 4, "kv_len": 4096, "heads": (heads, heads)}
    for name, value in (usual if many else USUAL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    workload = workload_of(spec, options, counted=False)
    with workers.executor(options.scheduler, alone=False) as pool:
        print(f"\n{_search(options, spec, workload, pool)}")
    return DONE


def _search(options: argparse.Namespace, spec: Any, workload: Workload, pool: Executor) -> str:
    """Return the tables of a search, and measure the `top` best tiles unless there is no GPU.

    pool: compiles, and has the GPU to measure on.
    """
    from labkernels.experiments import workers
    from labkernels.measure.tuning import search

    top = 0 if options.no_gpu else options.top
    if top < 0:
        raise ValueError(f"top = {top}, allowed: 0 or more")
    if top and spec.operation == "prefill_fp8":  # no bound judges sums of 14 bits
        why = "`labkernels record prefill_fp8` times its tiles"
        raise ValueError(f"kernel = {spec.name!r}, allowed: --no-gpu; {why}")
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
    return _table(expected, runs, workload, target)


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


def _table(expected: list[Expected], runs: list[Run], workload: Workload, gpu: Gpu) -> str:
    from labkernels.measure import resources
    from labkernels.measure.tuning import search

    if not expected:
        return "no tile is left: the ledger and the compiler rejected all"
    spec = resources.find(expected[0].candidate.instance.kernel)
    listed, measured = search.in_list(spec, workload), {run.candidate: run for run in runs}
    modelled = expected[0].time is not None
    wide = 3 + max(len(item.candidate.instance.tile.label) for item in expected)
    head = f"{'tile':<{wide}}{'registers':>12}{'smem KiB':>15}{'blocks/SM':>10}"
    head += f"{'bound':>7}{'expected':>11}" if modelled else f"{'splits':>8}"
    lines = [head + (f"{'measured':>11}{'rate':>12}{'verdict':>9}" if runs else "")]
    for item in expected:
        one, label = item.candidate, item.candidate.instance.tile.label
        registers = f"{one.registers} ({spec.predicted_registers(one.instance, gpu).registers})"
        smem = f"{one.smem_bytes / KiB:.1f} ({spec.smem(one.instance).total / KiB:.1f})"
        line = f"{label + ('' if label in listed else ' *'):<{wide}}{registers:>12}{smem:>15}"
        line += f"{one.blocks_per_sm:>10}"
        if item.time is None:
            line += f"{budget.plan(one.instance, workload, gpu).splits:>8}"
        else:
            line += f"{item.time.bound:>7}{format_time(item.time.time_s):>11}"
        lines.append(line + _measured(measured.get(one), workload))
    lines.append(LEGEND)
    if spec.operation in ("decode", "mla"):
        lines.append(PLANNED.format(workload.label))
    right = [run for run in runs if run.errors.passed]
    if right:
        best = min(right, key=lambda run: run.times.median_s)
        tile, time = best.candidate.instance.tile.label, format_time(best.times.median_s)
        lines.append(f"\nbest for {workload.label}: {tile}, {time}")
    return "\n".join(lines)


def _measured(run: Run | None, workload: Workload) -> str:
    if run is None:
        return ""
    time_s = run.times.median_s
    done, moved = workload.flops / time_s / 1e12, workload.bytes / time_s
    rate = f"{done:.0f} TFLOP/s" if hasattr(workload, "q_lens") else format_rate(moved)
    verdict = "passed" if run.errors.passed else "FAILED"
    return f"{format_time(time_s):>11}{rate:>12}{verdict:>9}"
