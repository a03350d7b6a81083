"""Every mistake that a kernel can make is an error that names block, thread and line."""

import platform
import shutil

import numpy as np
import pytest

from labkernels.cuda.host import build as host_build
from tests.cuda.host.small_kernels import aligned, build, message, place, run

needs_addr2line = pytest.mark.skipif(
    shutil.which("addr2line") is None, reason="without addr2line a plain access has no line"
)


class Places(dict):
    """The place of each comment `// here: marker` of mistakes.cuh, by the marker."""

    def __missing__(self, marker):
        return place("mistakes.cuh", marker)


AT = Places()


def arrays():
    return aligned(np.zeros(64), np.float32), aligned(np.zeros(64), np.float32)


def complain(kernel, which, *, threads=64, smem=0, grid=(1, 1, 1), checks=False):
    made = build(f"mistakes::{kernel}", checks=checks)
    return message(made, *arrays(), which, threads=threads, smem=smem, grid=grid)


BLOCK = "block (0, 0, 0)"
THREAD_37 = f"{BLOCK}, thread 37: "
# What each kernel does wrong, by its number, and what is said of it.
BARRIERS = {
    0: (f"{BLOCK}: not all threads reach sync_block at {{not reached by all}}",
        "threads 0 to 39: wait in sync_block at {not reached by all}",
        "threads 40 to 63: have returned"),
    2: ("warp 0 diverged",
        "thread 15 is in sync_block at {first half}, thread 16 at {second half}"),
    3: (f"{BLOCK}, thread 3: warp 0 diverged: this lane is in sync_warp",
        "at {lane 3 syncs}, others wait in shfl at {others exchange}"),
    4: (f"{BLOCK}: warp 0 diverged", "threads 0 to 4: wait in shfl at {without lane 5}",
        "thread 5: has returned"),
    5: ("warp 0 diverged: this lane is in mma_m16n8k16<f16>", "{mma of some}", "{mma of others}"),
    6: ("not all threads reach sync_block at {barrier of one}", "threads 0 to 32: have returned",
        "threads 34 to 63: wait in sync_warp at {warp barrier}"),
}  # fmt: skip
GLOBAL_MEMORY = {
    0: "load_global of 4 bytes at {behind} is out of bounds: byte 256 of input, which has 256",
    1: "load_constant of 4 bytes at {before} is out of bounds: byte -4 of input",
    2: "store_global of 4 bytes at {store behind} is out of bounds: byte 256 of output",
    3: "store_global of 4 bytes at {read-only} writes to the read-only input, byte 20",
    4: "load_constant of 4 bytes at {not constant} reads output, which this launch may write",
    5: "load_global of 4 bytes at {null} is out of bounds: address 0x0 is in no tensor",
    6: ("load_global at {odd address}: the global address 0x", "is not a multiple of 4 bytes"),
    7: ("cp_async_16 at {source misaligned}: the global address 0x", "is not a multiple of 16"),
    8: ("cp_async_16 at {target misaligned}: the shared address 0x", "is not a multiple of 16"),
    9: "cp_async_16 of 16 bytes at {source behind} is out of bounds: byte 256 of input",
    10: "cp_async_16 of 16 bytes at {target behind}: shared memory out of bounds: byte 64 of 64",
    11: "returns with 1 cp_async_16 in flight",
}
NEEDS_LINES = {  # (the kernel, its number, whether it is checked): what is said with addr2line
    ("global_memory", 13, False): (f"{THREAD_37}touches address 0x8, which is not", "{wild}"),
    ("global_memory", 14, False): f"{THREAD_37}divides an integer by zero at {{by zero}}",
    ("recursion", 0, False): "thread 0: overflows the stack of 65536 bytes that a thread has at k",
    ("shared", 2, False): "thread 0: shared memory out of bounds: byte 1200000 of 256 at {far}",
    ("shared", 3, False): "thread 0: shared memory out of bounds: byte -1200000 of 256 at {far}",
    ("shared", 0, True): "thread 0: reads shared byte 0 at {unwritten}, which no thread wrote",
    ("shared", 1, True): ("thread 63: shared memory out of bounds: writes 4 bytes at byte 256 of",
                          "{word behind}"),
    ("shared", 2, True): ("shared memory out of bounds: writes 4 bytes at byte 1200000", "{far}"),
    ("shared", 5, True): "thread 1: race: writes shared byte 0 at {same word}; thread 0 wrote it",
    ("shared", 6, True): ("thread 0: race: writes shared byte 0 at {then written}; thread 63 read",
                          "{read first}"),
    ("shared", 7, True): ("race: reads shared byte 120 at {after shfl}; thread 30 wrote it",
                          "and no barrier lies between"),  # exchanging registers orders no memory
    ("shared", 8, True): ("at {other warp's}, which no thread wrote", "reads shared byte"),
    ("shared", 11, True): "writes output without a word of the vocabulary at {wordless}",
}  # fmt: skip


def assert_said(text, words):
    for each in (words,) if isinstance(words, str) else words:
        assert each.format_map(AT) in text, text


@pytest.mark.parametrize("which", BARRIERS)
def test_a_barrier_or_a_warp_that_is_not_whole(which):
    assert_said(complain("barriers", which, threads=32 if which == 5 else 64), BARRIERS[which])


def test_warps_may_meet_in_different_barriers():
    run(build("mistakes::barriers"), *arrays(), 1, threads=64)


def test_a_warp_with_missing_lanes():
    kernel, (inputs, outputs) = build("mistakes::part_of_a_warp"), arrays()
    run(kernel, inputs, outputs, 0, threads=40)
    assert (outputs[:40] == np.arange(40) ^ 1).all()
    text = message(kernel, inputs, outputs, 1, threads=40)
    assert_said(text, "shfl at {a missing lane} reads lane 8 of a warp with 8 lanes")
    text = message(kernel, inputs, outputs, 2, threads=40)
    assert_said(text, "movmatrix_trans at {whole warps only} needs 32 lanes; this warp has")


@pytest.mark.parametrize("which", GLOBAL_MEMORY)
def test_global_memory_and_copies(which):
    text = complain("global_memory", which, smem=64)
    assert THREAD_37 in text
    assert_said(text, GLOBAL_MEMORY[which])


def test_a_vector_that_begins_inside_and_ends_outside():
    text = complain("global_memory", 12, grid=(3, 1, 1), smem=64)
    assert_said(text, ("block (1, 0, 0), thread 37: load_global of 16", "byte 256 of input"))


@needs_addr2line
@pytest.mark.parametrize(("kernel", "which", "checks"), NEEDS_LINES)
def test_a_plain_access_is_told_with_its_line(kernel, which, checks):
    if which == 14 and platform.machine() != "x86_64":
        pytest.skip("only x86 traps a division by zero")
    smem = 256 if kernel == "shared" else 64
    text = complain(kernel, which, smem=smem, checks=checks)
    assert_said(text, NEEDS_LINES[kernel, which, checks])


def test_the_first_block_that_fails_is_named_whatever_the_number_of_threads():
    kernel, launch = build("mistakes::global_memory"), {"threads": 64, "smem": 64}
    for host_threads in (1, 3):
        how = {**launch, "grid": (4, 4, 4), "host_threads": host_threads}
        assert THREAD_37 in message(kernel, *arrays(), 2, **how)


def test_ldmatrix_out_of_bounds_and_two_copies_to_one_place_have_lines_of_their_own():
    text = complain("shared", 10, smem=256)
    assert_said(text, "thread 16: ldmatrix_x4 of 16 bytes at {last row behind}: shared memory out")
    text = complain("shared", 9, smem=256, checks=True)
    assert_said(
        text, "thread 1: writes shared byte 0 at {copied over} while the cp_async_16 of thread 0"
    )


def test_a_missing_addr2line_leaves_the_place_in_the_library(monkeypatch):
    monkeypatch.setattr(host_build.shutil, "which", lambda name: None)
    assert "(install addr2line of GNU binutils to see the source line)" in complain("recursion", 0)


def test_ex2_without_its_coefficients_says_so():
    kernel = build("words::exp2", arch="sm_89")
    runtime = host_build._load_runtime(kernel.runtime)
    runtime.lab_set_ex2(None)
    text = message(kernel, np.zeros(8, np.float32), np.zeros(8, np.float32), 8, threads=128)
    assert "ex2_approx needs the coefficients of the hardware's exponential" in text
    host_build._give_ex2(runtime)
    out = np.zeros(8, np.float32)
    assert (run(kernel, np.zeros(8, np.float32), out, 8, threads=128) == 1).all()


def test_what_does_not_compile_is_told_in_the_compilers_words():
    with pytest.raises(host_build.HostKernelError, match="words::nothing does not compile"):
        build("words::nothing")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": 1025}, "threads is 1025; allowed: 1 to 1024"),
        ({"threads": 0}, "threads is 0"),
        ({"smem": 227 * 1024 + 1}, "smem_bytes is 232449; allowed: 0 to 232448"),
        ({"grid": (0, 1, 1)}, "grid is"),
        ({"grid": (1, 1)}, "grid is"),
    ],
)
def test_a_launch_that_no_gpu_takes(options, words):
    kernel = build("words::place")
    with pytest.raises(ValueError, match=words.replace("(", "\\(")):
        run(kernel, np.zeros(1), np.zeros(768, np.int32), **options)


def test_an_architecture_without_a_model():
    with pytest.raises(ValueError, match="arch is 'sm_70'; allowed: sm_80"):
        build("words::place", arch="sm_70")
