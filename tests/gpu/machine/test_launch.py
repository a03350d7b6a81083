"""Kernels load and launch on a real GPU, in order, with the predicted occupancy, at little cost."""

import ctypes
import threading
import time
from pathlib import Path

import pytest
import torch

from labkernels.cuda.compiler import nvrtc
from labkernels.cuda.gpu import device, driver
from labkernels.cuda.gpu import kernel as gpu_kernel
from labkernels.measure import resources
from tests.kernels.contract import CUDA
from tests.kernels.decode.cases import decode_case

pytestmark = pytest.mark.gpu
SOURCES = Path(__file__).parents[2] / "cuda" / "kernels_for_tests"
SMEM_BYTES = 96 * 1024
THREADS = 128
N = 10_000
BLOCKS = -(-N // THREADS)
SPINS = 50_000  # about 100 microseconds


class AddParams(ctypes.Structure):
    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("sum", ctypes.c_void_p),
        ("n", ctypes.c_int),
    )


class OrderParams(ctypes.Structure):
    _fields_ = (
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("spins", ctypes.c_int),
        ("n", ctypes.c_int),
    )


def load(source, instance, *, smem_bytes=SMEM_BYTES):
    reason = nvrtc.available()
    if reason is not None:
        pytest.skip(reason)
    compiled = nvrtc.compile_kernel(
        SOURCES / source,
        instance=instance,
        defines={"LAB_SMEM_BYTES": smem_bytes},
        arch=device.planning_gpu(0).compile_arch,
    )
    return compiled, gpu_kernel.load(compiled)


def geometry(smem_bytes=0):
    return {"grid": (BLOCKS, 1, 1), "threads": THREADS, "smem_bytes": smem_bytes}


def stream():
    return torch.cuda.current_stream().cuda_stream


def add_problem():
    a, b = torch.rand(2, N, device="cuda").unbind()
    total = torch.full((N,), float("nan"), device="cuda")
    return a, b, total, AddParams(a.data_ptr(), b.data_ptr(), total.data_ptr(), N)


def order_pair(reader, *, early):
    """Return tensors of 0, -1 and -2, and the launches that write and copy from one to the next."""
    source = torch.zeros(N, device="cuda")
    middle, target = torch.full_like(source, -1.0), torch.full_like(source, -2.0)
    _, writer = load("order.cuh", f"order::write_late<{THREADS}>")
    _, copy = load("order.cuh", f"order::{reader}<{THREADS}>")
    write_params = OrderParams(source.data_ptr(), middle.data_ptr(), SPINS, N)
    copy_params = OrderParams(middle.data_ptr(), target.data_ptr(), 0, N)
    late = writer.plan(**geometry(), params=write_params)
    plans = late, copy.plan(**geometry(), params=copy_params, early=early)

    def run():
        for plan in plans:
            plan.run(stream())

    return (source, middle, target), run


@pytest.mark.parametrize(("name", "smem_bytes"), [("add", 0), ("add_through_smem", SMEM_BYTES)])
def test_sum_of_two_arrays(name, smem_bytes):
    _, kernel = load("add.cuh", f"add::{name}<{THREADS}>")
    a, b, total, params = add_problem()
    kernel.launch(**geometry(smem_bytes), params=params, stream=stream())
    assert torch.equal(total, a + b)


def test_launch_on_another_stream_and_thread():
    _, kernel = load("add.cuh", f"add::add<{THREADS}>")
    a, b, total, params = add_problem()
    plan, other = kernel.plan(**geometry(), params=params), torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    plan.run(other.cuda_stream)
    torch.cuda.current_stream().wait_stream(other)
    assert torch.equal(total, a + b)
    total.fill_(float("nan"))
    torch.cuda.synchronize()
    # The new thread has no current context, since torch has not run in it.
    thread = threading.Thread(target=plan.run, args=(0,))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(total, a + b)


@pytest.mark.parametrize("early", [False, True])
def test_reader_that_waits_sees_every_write_also_in_a_graph(early):
    tensors, run = order_pair("copy_after", early=early)
    source, _, target = tensors
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for step in range(20):
        source.fill_(float(step))
        (graph.replay if step % 2 else run)()
        assert torch.equal(target, torch.full_like(target, step + 1.0))


def test_early_launch_really_starts_early():
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("launches are in order before sm_90")
    seen = {}
    for early in (False, True):
        tensors, run = order_pair("copy_too_soon", early=early)
        run()
        target = tensors[-1]
        seen[early] = target.unique().tolist()
    assert seen[False] == [1.0]
    assert -1.0 in seen[True], "no block of the second launch began before the first had ended"


def test_driver_reports_what_the_compiler_did():
    compiled, kernel = load("add.cuh", "add::spill<256>")
    assert kernel.registers == compiled.report.registers
    assert kernel.static_smem_bytes == compiled.report.static_smem_bytes
    assert kernel.local_bytes >= compiled.report.stack_bytes
    assert kernel.threads_max == 1024
    assert kernel.params_bytes == ctypes.sizeof(AddParams)


def test_live_gpu_agrees_with_the_table():
    gpu = device.live()
    assert gpu.name == torch.cuda.get_device_name(0)
    assert device.available() is None
    entry = device.matching_gpu(gpu)
    if entry is None:
        pytest.skip(f"{gpu.name} is not in the hardware table")
    # A board's own boost clock and the driver's view of its memory may differ from the data sheet.
    differing = {field for field, *_ in device.compare(entry, gpu)}
    assert differing <= {"boost_clock_hz", "dram_bytes"}


def test_a_prepared_launch_costs_microseconds():
    _, kernel = load("add.cuh", f"add::add<{THREADS}>")
    *_, params = add_problem()
    plan, where = kernel.plan(**geometry(), params=params), stream()
    times_s = []
    for _ in range(20):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            plan.run(where)
        times_s.append((time.perf_counter() - started) / 20)
    assert sorted(times_s)[len(times_s) // 2] < 20e-6


def loaded(instance, arch):
    """Return an instance as the driver has loaded it, with its bytes and its blocks per SM."""
    compiled = resources.compile_instance(instance, arch=arch)
    kernel = gpu_kernel.load(compiled, device=torch.cuda.current_device())
    smem_bytes = resources.find(instance.kernel).smem(instance).total
    blocks = ctypes.c_int()
    with driver.current(kernel.device):
        driver.call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.byref(blocks),
            ctypes.c_void_p(kernel.function),
            ctypes.c_int(instance.tile.threads),
            ctypes.c_size_t(smem_bytes),
        )
    return kernel, smem_bytes + kernel.static_smem_bytes, blocks.value


@pytest.mark.parametrize(
    "kernel", [name for name, spec in resources.cuda_kernels().items() if spec.smem]
)
def test_occupancy_is_the_formulas(kernel):
    gpu, spec = device.planning_gpu(0), resources.find(kernel)
    for instance in resources.all_instances([kernel]):
        if instance.dtype == "bf16" and spec.fits(instance, gpu):
            predicted = resources.resources(instance, gpu=gpu)
            found, smem_bytes, blocks = loaded(instance, gpu.compile_arch)
            assert found.registers == predicted.compiled.registers
            assert smem_bytes == predicted.smem.total
            assert (found.local_bytes > 0) == (predicted.compiled.spill_bytes > 0)
            assert blocks == predicted.occupancy.blocks_per_sm >= 1, instance


@pytest.mark.parametrize("kernel", CUDA)
def test_the_plan_counts_on_blocks_that_the_driver_places(kernel):
    for head_dim in (64, 128, 256):
        case = decode_case((100,), head_dim=head_dim, device="cuda")
        plan = case.step(kernel).plan
        instance = next(
            instance
            for instance in resources.all_instances([kernel])
            if instance.tile.label == plan.tile
            and (instance.head_dim, instance.dtype) == (head_dim, "fp16")
            and instance.rows == CUDA[kernel].rows(4)
        )
        found, _, blocks = loaded(instance, device.planning_gpu(0).compile_arch)
        assert plan.blocks_per_sm <= blocks
        assert plan.registers == found.registers
