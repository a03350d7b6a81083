"""The launcher runs against a driver that only records, with real C layouts and no GPU."""

import ctypes
import importlib.util
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from labkernels import hardware
from labkernels.cuda.compiler.nvrtc import CompiledKernel, ResourceReport
from labkernels.cuda.gpu import device, driver
from labkernels.cuda.gpu import kernel as gpu_kernel

HERE = Path(__file__).parents[1]
REPORT = ResourceReport(40, 0, 0, 0, 448, 1, ())
COMPILED = CompiledKernel("add::add<128>", "_Z3add", "sm_90a", b"\x7fELF...", REPORT, "")
GEOMETRY = {"grid": (5, 6, 7), "threads": 128, "smem_bytes": 65536}


class Params(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_void_p), ("n", ctypes.c_int), ("scale", ctypes.c_float))


class Recorded(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("smem_bytes", ctypes.c_uint),
        ("n_attributes", ctypes.c_uint),
        ("attribute_id", ctypes.c_int),
        ("attribute_value", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("launches", ctypes.c_int),
        ("refused", ctypes.c_int),
        ("dynamic_smem_max", ctypes.c_int),
        ("carveout", ctypes.c_int),
        ("params", ctypes.c_ubyte * 16),
    )


CACHED = (driver.library, driver.primary_context, device._read)


def clear_caches():
    for cached in CACHED:
        cached.cache_clear()


@pytest.fixture(scope="module")
def fake_library(tmp_path_factory):
    triton, compiler = importlib.util.find_spec("triton"), shutil.which("g++")
    if triton is None or compiler is None:
        pytest.skip("needs g++ and the cuda.h of Triton's wheel")
    include = Path(triton.origin).parent / "backends" / "nvidia" / "include"
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    command = [compiler, "-std=c++20", "-shared", "-fPIC", f"-I{include}", "-o", str(library)]
    subprocess.run([*command, str(HERE / "fake_libcuda.cpp")], check=True)
    return library


def not_here(name):
    raise OSError(f"{name} is not here")


@pytest.fixture
def fake(fake_library, monkeypatch):
    real = ctypes.CDLL(str(fake_library))
    clear_caches()
    libraries = {"libcuda.so.1": real}
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: libraries.get(name) or not_here(name))
    monkeypatch.setattr(gpu_kernel, "_LOADED", {})
    recorded = Recorded.in_dll(real, "recorded")
    ctypes.memset(ctypes.byref(recorded), 0, ctypes.sizeof(recorded))
    yield recorded
    clear_caches()


@pytest.fixture
def no_driver(monkeypatch):
    clear_caches()
    monkeypatch.setattr(driver.ctypes, "CDLL", not_here)
    yield
    clear_caches()


def test_load_opts_in_to_all_shared_memory_once(fake):
    kernel = gpu_kernel.load(COMPILED)
    assert kernel is gpu_kernel.load(COMPILED)
    assert (fake.dynamic_smem_max, fake.carveout) == (232448 - 448, 100)
    assert kernel.params_bytes == ctypes.sizeof(Params)
    assert (kernel.registers, kernel.local_bytes, kernel.threads_max) == (40, 8, 128)
    assert (kernel.static_smem_bytes, kernel.dynamic_smem_max_bytes) == (448, 232000)


def test_launch_reaches_the_driver_as_it_was_asked(fake):
    params = Params(0xDEADBEEF0000, 12345, 0.5)
    kernel = gpu_kernel.load(COMPILED)
    kernel.launch(**GEOMETRY, params=params, stream=0x7F00)
    assert (list(fake.grid), list(fake.block)) == ([5, 6, 7], [128, 1, 1])
    assert (fake.smem_bytes, fake.stream, fake.n_attributes) == (65536, 0x7F00, 0)
    assert fake.function == 0x123456789ABC
    assert bytes(fake.params) == bytes(params)
    plan = kernel.plan(**GEOMETRY, params=params, early=True)
    plan.params.n = 77  # a plan sees changed parameters
    plan.run(0)
    assert Params.from_buffer_copy(fake.params).n == 77
    # programmatic stream serialization
    assert (fake.n_attributes, fake.attribute_id, fake.attribute_value) == (1, 6, 1)
    assert fake.stream is None


def test_thread_without_a_context_gets_one_for_the_launch(fake):
    plan = gpu_kernel.load(COMPILED).plan(**GEOMETRY, params=Params())
    plan.run(0)
    assert (fake.refused, fake.launches) == (1, 1)
    with driver.current(0):
        plan.run(0)
    assert (fake.refused, fake.launches) == (1, 2)


def test_refused_launch_names_kernel_and_reason(fake):
    plan = gpu_kernel.load(COMPILED).plan(**GEOMETRY, params=Params())
    ctypes.c_int.in_dll(driver.library(), "fail_next_launch").value = 1
    with pytest.raises(driver.DriverError, match=r"add<128> failed: .*\(1\), invalid arg") as info:
        plan.run(0)
    assert info.value.code == 1
    broken = replace(COMPILED, cubin=b"text")
    with pytest.raises(driver.DriverError, match="cuModuleLoadData failed"):
        gpu_kernel.load(broken)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": (0, 1, 1)}, "grid = "),
        ({"grid": (1, 65536, 1)}, "grid = "),
        ({"threads": 129}, "threads = 129, allowed: 1 to 128"),
        ({"smem_bytes": 232001}, "smem_bytes = 232001, allowed: 0 to 232000"),
        ({"params": ctypes.c_double * 3}, "of 24 bytes, allowed: the 16 bytes"),
    ],
)
def test_impossible_launch_is_refused_before_the_driver_sees_it(fake, change, words):
    arguments = {**GEOMETRY, "params": Params, **change}
    arguments["params"] = arguments["params"]()
    with pytest.raises(ValueError, match=words):
        gpu_kernel.load(COMPILED).plan(**arguments)


def test_live_gpu_matches_the_table(fake):
    gpu = device.live()
    assert (gpu.name, gpu.arch, gpu.sm_count) == ("NVIDIA H200", "sm_90", 132)
    assert gpu.cuda_version == "13.2"
    assert device.available() is None
    assert device.live(1) is None
    assert "there is no GPU 1" in device.available(1)
    entry = device.matching_gpu(gpu)
    assert entry.key == "h200"
    assert device.compare(entry, gpu) == []
    assert device.planning_gpu() == entry
    listed = {field: values for field, *values in device.compare(hardware.gpu("a100"), gpu)}
    assert listed["arch"] == ["sm_80", "sm_90"]
    assert listed["sm_count"] == [108, 132]
    assert {"smem_per_sm_bytes", "l2_bytes", "dram_bytes"} <= listed.keys()
    assert "registers_per_sm" not in listed


def test_old_gpu_is_refused_with_the_reason(fake, monkeypatch):
    turing = replace(device.live(), name="Tesla T4", arch="sm_75")
    monkeypatch.setattr(device, "_read", lambda index: turing)
    assert device.matching_gpu(turing) is None
    assert "Tesla T4 is sm_75; the kernels need sm_80" in device.available()
    with pytest.raises(ValueError, match="index = 0, allowed: a GPU of sm_80 or newer; Tesla T4"):
        device.planning_gpu()


@pytest.mark.parametrize(
    ("arch", "compiles_for", "like"),
    [("sm_90", "sm_90a", "h100"), ("sm_87", "sm_87", "a10"), ("sm_121", "sm_121", "rtx5090")],
)
def test_gpu_outside_the_table_is_planned_with_its_own_numbers(
    fake, monkeypatch, arch, compiles_for, like
):
    other = replace(device.live(), name="NVIDIA New", arch=arch, sm_count=20)
    monkeypatch.setattr(device, "_read", lambda index: other)
    entry, nearest = device.planning_gpu(), hardware.gpu(like)
    assert (entry.name, entry.sm_count) == ("NVIDIA New", 20)
    assert (entry.arch, entry.compile_arch) == (arch, compiles_for)
    assert entry.smem_per_sm_bytes == 233472
    assert entry.fp32_fma_per_clk_per_sm == nearest.fp32_fma_per_clk_per_sm


def test_machine_without_a_driver_says_so(no_driver):
    assert device.live() is None
    assert "the NVIDIA driver is not installed (libcuda.so.1" in device.available()
    with pytest.raises(ValueError, match="the NVIDIA driver is not installed"):
        device.planning_gpu()
    with pytest.raises(driver.DriverError, match="not installed"):
        gpu_kernel.load(COMPILED)
