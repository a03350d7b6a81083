"""Prefill in 8 bits: every tile and policy of our kernel, beside the 16-bit one and FlashInfer's.

wgmma takes V in 8 bits with its keys contiguous, so the kernel transposes V. Two more kinds of rows
give the cost: the kernel without this work, and torch's transposition of V in memory.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.call import Step
from labkernels.kernels.prefill.fp8 import CODES, inputs_of, step_of
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.kernels.prefill.operation import OPERATION
from labkernels.kernels.prefill.wgmma_fp8.spec import KERNEL
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.measure.benchmark import poison
from labkernels.measure.implementation import Implementation, implementations, of_peer
from labkernels.measure.judge.judge import judge_of
from labkernels.measure.mutants.mutant import Edit, mutated
from labkernels.measure.peers import flashinfer_8_bits
from labkernels.measure.peers.peer import Refused
from labkernels.measure.timing import time_interleaved
from labkernels.policy import CUDA_CORES
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

SHAPES = ((1, 16384, 16, 16), (4, 4096, 16, 16), (1, 16384, 64, 8))  # requests, keys, heads
DATA_FILE = "performance/prefill_fp8.parquet"
WIDE = "prefill_wgmma"  # the 16-bit kernel
# Later products read the V of the first steps again, so that they multiply numbers as before.
UNTRANSPOSED = Edit(
    "prefill/wgmma_fp8/transpose.cuh",
    r"(transpose<C>\(to, raw, part\);)",
    r"{ if (n < C::stages) \1 }",
)


def grid(*, quick: bool = False) -> Iterator[Prefill]:
    """Yield the workloads, without and with a causal mask; `quick` has 256 tokens."""
    for batch, length, q_heads, kv_heads in SHAPES[: 1 if quick else None]:
        for causal in (False, True):
            n = (256 if quick else length,) * batch
            yield Prefill(n, n, q_heads, kv_heads, 128, causal=causal)


def _transposition(inputs: PrefillInputs) -> Step[tuple]:
    v = inputs.kv.v.to(CODES).permute(1, 2, 0)
    transposed = v.contiguous()  # [heads, dim, keys]
    return Step(partial(transposed.copy_, v), tuple)


def chosen() -> Iterator[Implementation]:
    """Yield our 8-bit kernel by policy and tile, others, and, nameless, what is not judged.

    The latter are preferred tiles without the work of the transposition, and torch's transposition.
    """
    without = mutated(KERNEL, UNTRANSPOSED)
    for policy in KERNEL.policies:
        tiles = KERNEL.tiles(None, policy) if policy.out == "input" else ()
        for tile in tiles:
            how = partial(step_of, policy=policy, tile=tile.label)
            name = f"{KERNEL.name} {policy.p} {policy.accumulate} {tile.label}"
            judged = replace(policy, p="e4m3") if policy.p == "input" else policy
            yield Implementation(name, KERNEL.name, "cuda", judged, policy.label, how)
        if tiles and policy.p == "input":
            how = partial(step_of, policy=policy, tile=tiles[0].label, kernel=without)
            name = f"{KERNEL.name} without transposition, {policy.accumulate}"
            yield Implementation(name, "", "cuda", policy, policy.label, how)
    yield implementations(OPERATION.name)[WIDE]
    of_prefill = (x for x in flashinfer_8_bits.PEERS if flashinfer_8_bits.PREFILL in x.steps)
    yield from (of_peer(flashinfer_8_bits.PREFILL, peer) for peer in of_prefill)
    name = "transposition of V in memory"
    yield Implementation(name, "", "torch", CUDA_CORES, "", _transposition)


def cells(options: Options) -> Iterator[Cell]:
    """Yield the workloads of the grid."""
    for work in grid(quick=options.quick):
        yield Cell(work.label, work)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Run, judge and time the kernels on a workload, in turns.

    Errors are those from float64 on the numbers of e4m3. They are not held to the judge's bound,
    which does not count the 14 bits of sums in 8-bit products; tests hold them to one that does. A
    kernel without the transposition has wrong outputs, and so only times.
    """
    options, work = recording.options, cell.of
    inputs = inputs_of(work, Normal(options.seed, recording.device))
    judge, found = judge_of(OPERATION.name, inputs), {}
    for item in chosen():
        if reason := item.missing():
            recording.tell(f"{item.name}: {reason}")
            continue
        try:
            step = item.prepare(inputs)
        except Refused as why:
            recording.tell(f"{item.name}: {why}")
            continue
        poison(step)
        step.run()
        errors = judge(step.outputs(), item.policy) if item.kernel else None
        found[item.name] = item, step, errors
    with recording.sampling():
        runs = {name: step.run for name, (_, step, _) in found.items()}
        times = time_interleaved(runs, repeats=options.repeats, eager=True)
    for name, (item, step, errors) in found.items():
        median_s = times[name].median_s
        recording.tell(f"{name} {format_time(median_s)} {work.flops / median_s / 1e12:.0f} TFLOP/s")
        base = measured.implementation_row(work, item, kernel=name, plan=step.plan)
        base |= {"note": work.label, "repeats": times[name].repeats}
        made = measured.quartile_rows(base, "time", times[name])
        of_errors = measured.error_rows(base, errors) if errors else []
        made += [row for row in of_errors if "ratio" not in row["metric"]]
        yield from ((DATA_FILE, row) for row in made)


EXPERIMENT = Experiment(
    "prefill_fp8", "Prefill in 8 bits", {DATA_FILE: schema.PREFILL_MEASUREMENTS}, cells, rows
)
