"""Barriers, registers and copies of sm_90 work, and each mistake with them is named."""

import shutil

import numpy as np
import pytest

from tests.cuda.host.small_kernels import aligned, build, message, place, run

SMEM_BYTES = 2048
needs_addr2line = pytest.mark.skipif(
    shutil.which("addr2line") is None, reason="without addr2line a plain access has no line"
)


def tensors():
    return aligned(np.arange(1024), np.float32), aligned(np.zeros(1024), np.float32)


def complain(kernel, number, *, threads=64, smem=SMEM_BYTES, **options):
    return message(
        build(f"gates::{kernel}", **options), *tensors(), number, threads=threads, smem=smem
    )


def check_message(kernel, number, words, marker=None, **options):
    text = complain(kernel, number, **options)
    for part in words if isinstance(words, list) else [words]:
        assert part.format(here=marker and place("gates.cuh", marker)) in text


@pytest.mark.parametrize(("number", "marker", "words"), [
    (0, "never made", "mbarrier_arrive at {here}: the barrier at shared byte 1024 is not"
                      " initialised"),
    (1, "no arrivals", "mbarrier_init at {here}: arrivals = 0, allowed: 1 to 1048575"),
    (2, None, "the barrier at shared byte 1024 has been initialised before"),
    (3, "unfenced", "mbarrier_arrive at {here}: no fence_mbarrier_init of thread 0 follows its"),
    (4, "unsynced", "thread 1: mbarrier_arrive at {here}: no sync_block lies between the"
                    " fence_mbarrier_init of thread 0 and this use"),
    (5, "written over", "the barrier at shared byte 1024 is not initialised, or was written over"),
])  # fmt: skip
def test_a_barrier_is_made_before_it_is_used(number, marker, words):
    check_message("initialisation", number, words, marker)


@pytest.mark.parametrize(("number", "marker", "words"), [
    (0, "one more", "mbarrier_arrive at {here}: the barrier at shared byte 1024 takes 1 arrivals"
                    " per phase, and this is one more, while 16 bytes are missing"),
    (1, "parity 2", "mbarrier_wait at {here}: parity = 2, allowed: 0, 1"),
    (2, "bytes missing", ["deadlock", "threads 0 to 31: wait in mbarrier_wait at {here} for parity"
                          " 0 of the barrier at shared byte 1024: 0 of 1 arrivals and 16 bytes are"
                          " missing", "threads 32 to 63: have returned"]),
    (3, "arrival missing", ["deadlock", "thread 40: waits in mbarrier_wait at {here} for parity 0"
                            " of the barrier at shared byte 1024: 1 of 2 arrivals and 0 bytes",
                            "threads 41 to 63: wait in sync_block"]),
    (4, "too much", "thread 0: bulk_load at {here} brings 32 bytes to the barrier at shared byte"
                    " 1024, 16 more than were announced"),
    (5, "unannounced", "thread 0: bulk_load at {here} brings 32 bytes to the barrier at shared byte"
                       " 1024, whose phase ended without them: they were not announced"),
    (6, "not waited for", "the block ends with the bulk_load at {here} on its way"),
    (7, "overrun", "thread 32: mbarrier_wait at {here}: the phase after the awaited one of the"
                   " barrier at shared byte 1024 ended too before this thread could go on"),
    (8, "negative", "mbarrier_arrive_expect_tx at {here}: bytes = -16, allowed: 0 to 1048575"),
])  # fmt: skip
def test_a_phase_counts_arrivals_and_bytes(number, marker, words):
    check_message("phases", number, words, marker)


@pytest.mark.parametrize(("number", "marker", "words"), [
    (0, "id", "named_sync at {here}: id = 0, allowed: 1 to 15"),
    (1, "threads", "named_arrive at {here}: threads = 48, allowed: multiples of 32 up to the 512"),
    (2, "of 96", "named_sync at {here}: barrier 2 of 96 threads; at"),
    (2, "of 64", "{here} it is of 64"),
    (3, "again", "named_sync at {here}: warp 0 comes to barrier 3 again, before the others"),
    (4, "lanes differ", "named_sync at {here}: the lanes name different barriers or counts"),
    (5, "two of three", ["deadlock", "threads 0 to 63: wait in named_sync at {here} for barrier 5:"
                         " 64 of 96 threads have come"]),
    (6, "no registers", ["deadlock", "threads 0 to 511: wait in setmaxnreg_inc at {here} for 240"
                         " registers: a warp's 128 and 0 that were given up are too few"]),
    (7, "lower to more", "setmaxnreg_dec at {here}: 240 registers are more than the 128"),
    (8, "raise to fewer", "setmaxnreg_inc at {here}: 40 registers are fewer than the 64"),
    (9, None, "warps 4 and 5 of a warpgroup end with 128 and 64 registers per thread"),
    (10, "not uniform", "warp_uniform at {here}: the lanes' values differ"),
])  # fmt: skip
def test_warps_meet_and_share_registers(number, marker, words):
    check_message("warps", number, words, marker, threads=512)


@pytest.mark.parametrize("checks", [False, True])
def test_named_barriers_and_registers_that_are_right(checks):
    inputs, out = tensors()
    run(build("gates::warps", checks=checks), inputs, out, 11, threads=512, smem=SMEM_BYTES)
    assert (out[:512] == np.arange(512) // 32).all()


@pytest.mark.parametrize(("number", "marker", "words"), [
    (0, "24 bytes", "bulk_load at {here}: bytes = 24, allowed: multiples of 16"),
    (1, "global 4", "bulk_load at {here}: the global address 0x"),
    (2, "shared 4", "bulk_load at {here}: shared byte 4 is not a multiple of 16"),
    (3, "beyond shared", "bulk_load of 1024 bytes at {here}: shared memory out of bounds: byte 1024"
                         " of 1088"),
    (4, "beyond global", "bulk_load of 32 bytes at {here} is out of bounds: byte 4080 of input"),
    (5, "add beyond", "bulk_add of 32 bytes at {here} is out of bounds: byte 4080 of output"),
    (6, "add to input", "bulk_add of 32 bytes at {here} writes to the read-only input, byte 0"),
    (7, "changed", "shared memory of the bulk_add at {here} changed while it was read"),
    (8, "returns", "returns while the bulk_add at {here} may still read shared memory"),
])  # fmt: skip
def test_copies_stay_in_bounds_and_are_waited_for(number, marker, words):
    check_message("copies", number, words, marker, threads=32, smem=1088)


def test_an_add_arrives_with_its_wait():
    inputs, out = tensors()
    run(build("gates::copies", checks=True), inputs, out, 9, threads=32, smem=SMEM_BYTES)
    assert (out[:32] == 1).all()
    assert (out[64:66] == 5).all()
    assert out.sum() == 42


def test_until_a_load_has_landed_its_place_holds_nan():
    inputs, out = tensors()
    run(build("gates::proxies"), inputs, out, 3, threads=64, smem=SMEM_BYTES)
    assert np.isnan(out[0])


@pytest.mark.parametrize(("number", "word"), list(enumerate(
    ["mbarrier_init", "named_sync", "stmatrix_x4", "bulk_add"]
)))  # fmt: skip
def test_an_older_architecture_has_none_of_them(number, word):
    text = complain("old_machine", number, arch="sm_89")
    assert f"{word} at " in text
    assert "needs sm_90" in text


@pytest.mark.parametrize("kernel", ["handover", "copied", "two_warps"])
@pytest.mark.parametrize("number", [0, 4])
def test_barriers_order_what_they_should(kernel, number):
    inputs, out = tensors()
    made = build(f"gates::{kernel}", checks=True)
    run(made, inputs, out, number, threads=64, smem=SMEM_BYTES)
    assert (out[:32] == inputs[:128].reshape(4, 32).sum(0)[np.arange(32) ^ 1]).all()


def test_who_asks_for_a_copy_may_make_the_fence():
    inputs, out = tensors()
    made = build("gates::proxies", checks=True)
    run(made, inputs, out, 4, threads=64, smem=SMEM_BYTES)
    assert (out[:64] == 1).all()


@needs_addr2line
@pytest.mark.parametrize(("kernel", "number", "here", "there", "words"), [
    ("handover", 1, "added up", "brought", "reads shared byte 120 at {here}, which no thread"
     " wrote"),
    ("handover", 2, "announced", "brought", "mbarrier_arrive_expect_tx at {here}: the barrier at"
     " shared byte 1024 takes 1 arrivals per phase, and this is one more, while 128 bytes are"
     " missing"),
    ("handover", 3, "brought", "added up", "race: writes shared byte 0 at {here}; thread 33 read it"
     " at {there}, and no barrier lies between"),
    ("copied", 1, "summed", "", "reads shared byte 120 at {here}, which no thread wrote"),
    ("two_warps", 1, "warp 1 reads", "warp 0 writes", "reads shared byte 4 at {here}; thread 1"
     " wrote it at {there}"),
    ("two_warps", 2, "warp 0 arrives", "warp 1 reads", "named_arrive at {here}: warp 0 comes to"
     " barrier 1 again, before the others have come"),
    ("proxies", 1, "sent", "stored", "bulk_add at {here} reads shared byte 4 at {there}, where"
     " thread 1 wrote it: no fence_async_shared of that thread lies between"),
    ("proxies", 2, "sent", "stored", "reads"),
    ("proxies", 3, "too early", "stored", "reads shared byte 20 at {here} while the bulk_load"),
])  # fmt: skip
def test_a_missing_edge_is_a_race(kernel, number, here, there, words):
    markers = {"here": here, "there": there or here}
    places = {key: place("gates.cuh", marker) for key, marker in markers.items()}
    assert words.format(**places) in complain(kernel, number, checks=True)
