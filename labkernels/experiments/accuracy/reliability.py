"""Count runs whose bits differ: a million decode steps in CUDA graphs, and repeats of kernels."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkernels.experiments.accuracy.bits import cases
from labkernels.experiments.harness import Cell, Experiment, Options, Recording
from labkernels.kernels.append.workload import Append
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.kernel import Instance, Kernel
from labkernels.kernels.operation import Operation, operations
from labkernels.kernels.registry import discover, kernels_of
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/reliability.csv"
STEPS, REPEATS = "changing steps", "repeats"

CHOSEN = "decode_mma_n8"  # the kernel chosen for a decode of CHANGING
RUNS, OTHERS_RUNS = 1_000_000, 100_000  # steps with changing contents: CHOSEN, each other kernel
REPEATED = 1000
QUICK_RUNS = 8  # also steps per graph
CONTENTS = 64  # sets of lengths and pages
CHANGING = Decode((1000,) * 8, 32, 8, 128, 16, "bf16")  # with each request's greatest length
KEYS_PER_SPLIT = 256
APPENDED = Append((0, 1, 17, 64, 300), (5, 0, 40, 1, 200), 8, 128, 16, "bf16")


@dataclass(frozen=True)
class Case:
    """A kernel on a workload that is run many times; instance: a CUDA kernel's variant."""

    what: str
    kernel: Kernel
    workload: Any
    asked: dict[str, Any]
    instance: Instance | None = None

    @property
    def operation(self) -> Operation:
        """The kernel's operation."""
        return operations()[self.kernel.operation]


def cells(options: Options) -> Iterator[Cell]:
    """Yield the decodes whose contents change, then each kernel; `quick` keeps one of each."""
    changing, repeated = list(_changing()), list(_repeated())
    for case in changing[:1] + repeated[:1] if options.quick else changing + repeated:
        yield Cell(f"{case.what}/{case.kernel.name}", case)


def _changing() -> Iterator[Case]:
    """Yield the kernels of a decode, CHOSEN first."""
    work = CHANGING
    kernels = kernels_of("decode", "cuda") | kernels_of("decode", "triton")
    for kernel in sorted(kernels.values(), key=lambda kernel: kernel.name != CHOSEN):
        asked = {"kernel": kernel.name, "keys_per_split": KEYS_PER_SPLIT}
        shape = kernel.shape(dtype=work.dtype, head_dim=work.head_dim, group=work.group)
        yield Case(STEPS, kernel, work, asked, kernel.instance(shape))


def _repeated() -> Iterator[Case]:
    """Yield each CUDA kernel on the last workload of its recorded bits, and each Triton kernel.

    A Triton kernel runs on the first workload of its operation's recorded bits.
    """
    for operation in operations().values():
        last = {case.instance.kernel: case for case in cases(operation)}
        for name, case in last.items():
            yield Case(REPEATS, discover()[name], case.workload, case.asked, case.instance)
        for kernel in kernels_of(operation.name, "triton").values():
            case = next(cases(operation))
            asked = {"kernel": kernel.name, **case.options}
            yield Case(REPEATS, kernel, case.workload, asked)
    yield Case(REPEATS, discover()["append"], APPENDED, {"kernel": "append"})


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Count the runs whose bits differ, and the device memory that they do not give back."""
    from labkernels.experiments.accuracy import repeated

    case, quick = cell.of, recording.options.quick
    how = {"seed": recording.options.seed, "device": recording.device}
    if recording.on_gpu:
        from labkernels.cuda.gpu.device import planning_gpu

        recording.ahead(compile_ahead, cell, planning_gpu().compile_arch)
    if case.what == REPEATS:
        watched, contents, in_a_graph = repeated.fixed(case, **how), 1, 1
        runs = QUICK_RUNS if quick else REPEATED
    else:
        contents = QUICK_RUNS if quick else CONTENTS
        watched, in_a_graph = repeated.changing(case, contents, **how), QUICK_RUNS
        runs = QUICK_RUNS if quick else RUNS if case.kernel.name == CHOSEN else OTHERS_RUNS
    with recording.sampling():
        began_s = time.perf_counter()
        different, grown_bytes = watched.count(runs, in_a_graph)
        seconds = time.perf_counter() - began_s
    found = f"{different} of {runs} runs differ, {grown_bytes} bytes more"
    recording.tell(f"{found}, {seconds:.1f} s")
    if different or grown_bytes > 0:
        recording.fail(f"{cell.label}: {found}")
    row = {"what": case.what, "kernel": case.kernel.name, "backend": case.kernel.language}
    row |= {"dtype": case.workload.dtype, "workload": case.workload.label, "contents": contents}
    row |= {"runs": runs, "different": different, "grown_bytes": grown_bytes}
    yield DATA_FILE, row | {"seconds": round(seconds, 3)}


def compile_ahead(case: Case, arch: str) -> None:
    """Compile a CUDA kernel into the cache; Triton compiles its kernels when they run."""
    from labkernels.cuda.compiler import nvrtc

    for made in case.kernel.specializations(case.instance) if case.instance else ():
        nvrtc.compiled(made, arch)


EXPERIMENT = Experiment(
    "reliability",
    "The same bits in a million decode steps whose lengths and pages change, and in a thousand"
    " repeats of every kernel",
    {DATA_FILE: schema.TABLES["reliability"]},
    cells,
    rows,
    renewed=(DATA_FILE,),
)
