"""Count runs whose bits differ: a million decode steps in CUDA graphs, and repeats of kernels.

One CUDA graph fills the outputs with NaN, runs the step, compares the bits on the device, and
counts differences, without the host.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from labkernels.cuda.compiler import nvrtc
from labkernels.cuda.gpu.device import planning_gpu
from labkernels.experiments.accuracy.bits import cases
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.append.inputs import AppendInputs
from labkernels.kernels.append.workload import Append
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.call import Step
from labkernels.kernels.decode.api import decode_step
from labkernels.kernels.decode.inputs import DecodeInputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.kernel import Instance, Kernel
from labkernels.kernels.operation import Operation, operations
from labkernels.kernels.random_inputs import DTYPES, ExactNormal
from labkernels.kernels.registry import discover, kernels_of
from labkernels.measure import timing
from labkernels.measure.judge.judge import judge_of
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
NAN_BITS = 0x7FFF7FFF  # NaN in fp32, and twice in fp16 and bf16
WILD_PAGE = 2**31 - 1  # fills the page table after a request's pages; no kernel may read that page
JUDGED = 4  # how many of the changing contents are judged


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
    steps, repeats = list(_changing()), list(_repeated())
    for case in steps[:1] + repeats[:1] if options.quick else steps + repeats:
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
    case, quick = cell.of, recording.options.quick
    how = {"seed": recording.options.seed, "device": recording.device}
    if recording.on_gpu:
        recording.ahead(compile_ahead, cell, planning_gpu().compile_arch)
    if case.what == REPEATS:
        watched, contents, in_a_graph = fixed(case, **how), 1, 1
        runs = QUICK_RUNS if quick else REPEATED
    else:
        contents = QUICK_RUNS if quick else CONTENTS
        watched, in_a_graph = changing(case, contents, **how), QUICK_RUNS
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
    for made in case.kernel.specializations(case.instance) if case.instance else ():
        nvrtc.compiled(made, arch)


@dataclass(frozen=True, eq=False)
class Watched:
    """A step with a comparison after each run; `different` counts differing runs on the device."""

    once: Callable[[], Any]
    different: torch.Tensor

    def count(self, runs: int, in_a_graph: int) -> tuple[int, int]:
        """Return how many runs have other bits, and how many bytes of device memory are lost.

        Raises: ValueError if the runs do not fill whole graphs.
        """
        if runs % in_a_graph:
            raise ValueError(f"runs = {runs}, allowed: multiples of {in_a_graph}")
        graph = timing.capture(lambda: [self.once() for _ in range(in_a_graph)])
        graph.replay()
        before = used_bytes(self.different.device)
        self.different.zero_()
        for _ in range(runs // in_a_graph):
            graph.replay()
        different = int(self.different)  # waits for all replays
        return different, used_bytes(self.different.device) - before


def used_bytes(device: torch.device) -> int:
    """Return the bytes of a GPU's memory that any process uses; 0 without a GPU."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def fixed(case: Case, seed: int, device: str) -> Watched:
    """Return a step on constant inputs; its first run is judged, and later runs are compared.

    Raises: ValueError if the first run is wrong.
    """
    operation = case.operation
    inputs = operation.inputs(case.workload, ExactNormal(seed, device))
    step = operation.step(inputs, **case.asked)
    appends = isinstance(inputs, AppendInputs)
    cache = inputs.cache if appends else None
    written = (cache.k, cache.v) if appends else tuple(step.outputs())
    restored = [(cache.kv_len, cache.kv_len.clone())] if appends else []

    def run() -> None:
        for tensor in written:
            tensor.fill_(torch.nan)
        for tensor, value in restored:
            tensor.copy_(value)
        step.run()

    run()
    require_right(case, inputs, step)
    different = torch.zeros((), dtype=torch.int64, device=device)
    expected = [bits(x).clone() for x in written]

    def once() -> None:
        run()
        wrong = [
            (bits(found) != right).any() for found, right in zip(written, expected, strict=True)
        ]
        different.add_(torch.stack(wrong).any())

    return Watched(once, different)


def changing(case: Case, contents: int, seed: int, device: str) -> Watched:
    """Return a decode step whose lengths and pages change before each run, on the device.

    The bits of a run must equal those of a fresh step. The first JUDGED outputs are judged.
    Raises: ValueError if one of these is wrong.
    """
    work, draw = case.workload, ExactNormal(seed, device)
    slots = max(work.kv_lens) // work.page_size + 1
    pool = (2 * work.batch * slots, work.page_size, work.kv_heads, work.head_dim)
    q, k, v = (
        draw.tensor(work.dtype, *shape)
        for shape in ((work.batch, work.q_heads, work.head_dim), pool, pool)
    )
    listed = _contents(work, slots, pool[0], contents, seed).to(device)
    current = listed[0].clone()
    table = current[: work.batch * slots].view(work.batch, slots)
    kv_len = current[work.batch * slots :]
    room, out, lse2 = _outputs(work, device)
    step = decode_step(q, PagedKV(k, v, table, kv_len), out=out, lse2=lse2, **case.asked)
    expected = torch.empty((contents, len(room)), dtype=torch.int32, device=device)
    for number in range(contents):
        current.copy_(listed[number])
        fresh = PagedKV(k, v, table.clone(), kv_len.clone())
        room.fill_(NAN_BITS)
        decode_step(q, fresh, out=out, lse2=lse2, **case.asked).run()
        expected[number] = room
        if number < JUDGED:
            inputs = DecodeInputs(work, q, fresh, work.head_dim**-0.5)
            require_right(case, inputs, step)
    place = torch.zeros(1, dtype=torch.int64, device=device)
    different = torch.zeros((), dtype=torch.int64, device=device)

    def once() -> None:
        current.copy_(listed.index_select(0, place)[0])
        room.fill_(NAN_BITS)
        step.run()
        different.add_((expected.index_select(0, place)[0] != room).any())
        place.add_(1).remainder_(contents)

    return Watched(once, different)


def _outputs(work, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return one piece of memory as int32, and views of it for the two outputs."""
    rows, kind = work.batch * work.q_heads, DTYPES[work.dtype]
    words = rows * work.head_dim * kind.itemsize // 4
    room = torch.empty(words + rows, dtype=torch.int32, device=device)
    out = room[:words].view(kind).view(work.batch, work.q_heads, work.head_dim)
    return room, out, room[words:].view(torch.float32).view(work.batch, work.q_heads)


def _contents(work, slots: int, pages: int, contents: int, seed: int) -> torch.Tensor:
    """Draw page tables and lengths, int32 [contents, batch * slots + batch]."""
    draw = torch.Generator().manual_seed(seed)
    longest = max(work.kv_lens)
    edges = torch.tensor([0, 1, work.page_size, work.page_size + 1, longest])
    listed = []
    for _ in range(contents):
        lengths = torch.randint(0, longest + 1, (work.batch,), generator=draw)
        at_edges = torch.rand(work.batch, generator=draw) < 0.25
        chosen = edges[torch.randint(len(edges), (work.batch,), generator=draw)]
        lengths = torch.where(at_edges, chosen, lengths)
        table = torch.randperm(pages, generator=draw)[: work.batch * slots].view(-1, slots)
        used = torch.arange(slots) * work.page_size < lengths[:, None]
        listed.append(torch.cat([torch.where(used, table, WILD_PAGE).view(-1), lengths]).int())
    return torch.stack(listed)


def require_right(case: Case, inputs: Any, step: Step) -> None:
    """Raise ValueError unless what the step has written passes the operation's judge."""
    judge = judge_of(case.operation.name, inputs)
    errors = judge(step.outputs(), case.asked.get("policy") or case.kernel.policies[0])
    if not errors.passed:
        raise ValueError(f"{case.kernel.name}: {errors.reason}")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bits as integers, which makes NaN equal to itself."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


EXPERIMENT = Experiment(
    "reliability",
    "The same bits in a million decode steps whose lengths and pages change, and in a thousand"
    " repeats of every kernel",
    {DATA_FILE: schema.TABLES["reliability"]},
    cells,
    rows,
    renewed=(DATA_FILE,),
)
