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


def at(marker):
    return place("mistakes.cuh", marker)


def complain(kernel, which, *, threads=64, smem=0, grid=(1, 1, 1), checks=False):
    made = build(f"mistakes::{kernel}", checks=checks)
    inputs, outputs = aligned(np.zeros(64), np.float32), aligned(np.zeros(64), np.float32)
    return message(made, inputs, outputs, which, threads=threads, smem=smem, grid=grid)


def test_a_barrier_that_some_threads_do_not_reach():
    text = complain("barriers", 0)
    assert (
        f"block (0, 0, 0): not all threads reach sync_block at {at('not reached by all')}" in text
    )
    assert f"threads 0 to 39: wait in sync_block at {at('not reached by all')}" in text
    assert "threads 40 to 63: have returned" in text


def test_warps_may_meet_in_different_barriers():
    kernel = build("mistakes::barriers")
    run(kernel, np.zeros(64, np.float32), np.zeros(64, np.float32), 1, threads=64)


def test_a_warp_split_over_two_barriers():
    text = complain("barriers", 2)
    assert "warp 0 diverged" in text
    assert (
        f"thread 15 is in sync_block at {at('first half')}, thread 16 at {at('second half')}"
        in text
    )


def test_lanes_in_different_words():
    text = complain("barriers", 3)
    assert "block (0, 0, 0), thread 3: warp 0 diverged: this lane is in sync_warp" in text
    assert f"at {at('lane 3 syncs')}, others wait in shfl at {at('others exchange')}" in text


def test_a_lane_that_returned_before_a_warp_word():
    text = complain("barriers", 4)
    assert "block (0, 0, 0): warp 0 diverged" in text
    assert f"threads 0 to 4: wait in shfl at {at('without lane 5')}" in text
    assert "thread 5: has returned" in text


def test_lanes_in_two_instructions_of_the_same_name():
    text = complain("barriers", 5, threads=32)
    assert "warp 0 diverged: this lane is in mma_m16n8k16<f16>" in text
    assert at("mma of some") in text
    assert at("mma of others") in text


def test_a_deadlock_lists_who_waits_where():
    text = complain("barriers", 6)
    assert f"not all threads reach sync_block at {at('barrier of one')}" in text
    assert "threads 0 to 32: have returned" in text
    assert f"threads 34 to 63: wait in sync_warp at {at('warp barrier')}" in text


def test_a_warp_with_missing_lanes():
    kernel = build("mistakes::part_of_a_warp")
    inputs, outputs = np.zeros(64, np.float32), np.zeros(64, np.float32)
    run(kernel, inputs, outputs, 0, threads=40)
    assert (outputs[:40] == np.arange(40) ^ 1).all()
    text = message(kernel, inputs, outputs, 1, threads=40)
    assert f"shfl at {at('a missing lane')} reads lane 8 of a warp with 8 lanes" in text
    text = message(kernel, inputs, outputs, 2, threads=40)
    assert f"movmatrix_trans at {at('whole warps only')} needs 32 lanes; this warp has" in text


@pytest.mark.parametrize(
    ("which", "marker", "words"),
    [
        (
            0,
            "behind",
            "load_global of 4 bytes at {at} is out of bounds: byte 256 of input, which has 256",
        ),
        (1, "before", "load_constant of 4 bytes at {at} is out of bounds: byte -4 of input"),
        (2, "store behind", "store_global of 4 bytes at {at} is out of bounds: byte 256 of output"),
        (3, "read-only", "store_global of 4 bytes at {at} writes to the read-only input, byte 20"),
        (
            4,
            "not constant",
            "load_constant of 4 bytes at {at} reads output, which this launch may write",
        ),
        (5, "null", "load_global of 4 bytes at {at} is out of bounds: address 0x0 is in no tensor"),
        (6, "odd address", "load_global at {at}: the global address 0x"),
        (7, "source misaligned", "cp_async_16 at {at}: the global address 0x"),
        (8, "target misaligned", "cp_async_16 at {at}: the shared address 0x"),
        (9, "source behind", "cp_async_16 of 16 bytes at {at} is out of bounds: byte 256 of input"),
        (
            10,
            "target behind",
            "cp_async_16 of 16 bytes at {at}: shared memory out of bounds: byte 64 of 64",
        ),
    ],
)
def test_global_memory_and_copies(which, marker, words):
    text = complain("global_memory", which, smem=64)
    assert "block (0, 0, 0), thread 37: " + words.format(at=at(marker)) in text
    if "address 0x" in words and "no tensor" not in words:
        assert f"is not a multiple of {4 if which == 6 else 16} bytes" in text


def test_a_copy_in_flight_at_the_end():
    text = complain("global_memory", 11, smem=64)
    assert "block (0, 0, 0), thread 37: returns with 1 cp_async_16 in flight" in text


def test_a_vector_that_begins_inside_and_ends_outside():
    text = complain("global_memory", 12, grid=(3, 1, 1), smem=64)
    assert "block (1, 0, 0), thread 37: load_global of 16 bytes" in text
    assert "byte 256 of input" in text


@needs_addr2line
def test_a_wild_pointer():
    text = complain("global_memory", 13, smem=64)
    assert "block (0, 0, 0), thread 37: touches address 0x8, which is not memory" in text
    assert at("wild") in text


@needs_addr2line
@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 traps a division by zero")
def test_an_integer_division_by_zero():
    text = complain("global_memory", 14, smem=64)
    assert f"block (0, 0, 0), thread 37: divides an integer by zero at {at('by zero')}" in text


def test_the_first_block_that_fails_is_named_whatever_the_number_of_threads():
    kernel = build("mistakes::global_memory")
    inputs, outputs = aligned(np.zeros(64), np.float32), aligned(np.zeros(64), np.float32)
    for host_threads in (1, 3):
        text = message(
            kernel,
            inputs,
            outputs,
            2,
            grid=(4, 4, 4),
            threads=64,
            smem=64,
            host_threads=host_threads,
        )
        assert "block (0, 0, 0), thread 37" in text


@needs_addr2line
def test_a_stack_that_overflows():
    text = complain("recursion", 0)
    assert "thread 0: overflows the stack of 65536 bytes that a thread has at kernels/" in text


@needs_addr2line
@pytest.mark.parametrize(("which", "byte"), [(2, 1200000), (3, -1200000)])
def test_shared_memory_far_out_of_bounds_needs_no_checks(which, byte):
    text = complain("shared", which, smem=256)
    assert f"thread 0: shared memory out of bounds: byte {byte} of 256 at {at('far')}" in text


def test_ldmatrix_out_of_bounds_needs_no_checks():
    text = complain("shared", 10, smem=256)
    where = at("last row behind")
    assert f"thread 16: ldmatrix_x4 of 16 bytes at {where}: shared memory out of bounds" in text


@needs_addr2line
@pytest.mark.parametrize(
    ("which", "marker", "words", "other"),
    [
        (0, "unwritten", "thread 0: reads shared byte 0 at {at}, which no thread wrote", None),
        (
            1,
            "word behind",
            "thread 63: shared memory out of bounds: writes 4 bytes at byte 256 of 256",
            None,
        ),
        (2, "far", "shared memory out of bounds: writes 4 bytes at byte 1200000 of 256", None),
        (
            5,
            "same word",
            "thread 1: race: writes shared byte 0 at {at}; thread 0 wrote it",
            "same word",
        ),
        (
            6,
            "then written",
            "thread 0: race: writes shared byte 0 at {at}; thread 63 read it",
            "read first",
        ),
        (8, "other warp's", "reads shared byte {any} at {at}, which no thread wrote", None),
    ],
)
def test_shared_memory_is_checked(which, marker, words, other):
    text = complain("shared", which, smem=256, checks=True)
    pieces = words.format(at=at(marker), any="\0").split("\0")
    assert all(piece in text for piece in pieces), text
    assert at(marker) in text
    assert other is None or at(other) in text


@needs_addr2line
def test_exchanging_registers_orders_no_memory():
    text = complain("shared", 7, smem=256, checks=True)
    assert f"race: reads shared byte 120 at {at('after shfl')}; thread 30 wrote it" in text
    assert "and no barrier lies between" in text


def test_two_copies_to_one_place():
    text = complain("shared", 9, smem=256, checks=True)
    where = at("copied over")
    assert f"thread 1: writes shared byte 0 at {where} while the cp_async_16 of thread 0" in text


@needs_addr2line
def test_a_tensor_is_touched_through_words_only():
    text = complain("shared", 11, smem=256, checks=True)
    assert f"writes output without a word of the vocabulary at {at('wordless')}" in text


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


def test_no_compiler_names_what_to_install(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(host_build.CompilerMissing, match="no-such-compiler.*install one: "):
        host_build.compiler()
