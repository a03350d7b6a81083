"""The checker or the contract finds each mistake that is seeded in a kernel."""

import re
import shutil

import pytest

from labkernels.cuda.host.build import HostKernelError
from labkernels.measure.mutants.decode import SOFTMAX, SPLITS
from labkernels.measure.mutants.mutant import KERNEL, Edit, mutated
from tests.kernels.backward.cases import backward_case
from tests.kernels.backward.cases import run_checked as run_backward
from tests.kernels.contract import RAGGED, SPECS, run_checked
from tests.kernels.decode.cases import decode_case
from tests.kernels.prefill.cases import prefill_case

PIPELINE = "decode/pipeline.cuh"
ROWS, PREFILL_CONSUMER = "packed_gqa/rows.cuh", "prefill/wgmma/consumer.cuh"
PROBLEM, BACKWARD_ROWS = "backward/problem.cuh", "backward/rows.cuh"
SHARED = "backward/mma/gradients.cuh"
CONSUMER, GRADIENTS = "backward/wgmma/consumer.cuh", "backward/wgmma/gradients.cuh"
IN_FLIGHT = "reads shared byte .* while the cp_async_16 of thread .* is in flight"
RACE = "race: .* shared byte .* no barrier lies between|which no thread wrote"
EARLY = f"{RACE}|in flight|fence_async_shared|NaN or infinity in dq"
FOUND = "(out|lse2|dq|dk|dv) is .* off where|NaN or infinity in|without keys is not|out of bounds"


def deleted(file, pattern, before=""):
    """Return the edit that deletes a pattern where it follows another one."""
    return Edit(file, f"({before}){pattern}", r"\1")


# What a barrier or a wait guards: the kernel, what is deleted, and what the checks say.
BARRIERS = {
    "sync_warp of wait_k": ("decode_mma", IN_FLIGHT,
        deleted(PIPELINE, r"sync_warp\(\);", r"void wait_k\(\) \{[^}]*?")),
    "sync_warp of wait_v": ("decode_mma", IN_FLIGHT,
        deleted(PIPELINE, r"sync_warp\(\);", r"void wait_v\(\) \{[^}]*?")),
    "wait of wait_k": ("decode_mma", IN_FLIGHT,
        deleted(PIPELINE, r"cp_async_wait<[^>]*>\(\);", r"void wait_k\(\) \{\s*")),
    "before Q is read": ("decode_mma", f"which no thread wrote|{IN_FLIGHT}",
        deleted(KERNEL, r"sync_block\(\);", r"wait_earlier_copies\(\);\s*")),
    "before the States take the stages' place": (
        "decode_mma", "writes shared byte .* is in flight|race: writes shared byte",
        deleted(PIPELINE, r"sync_block\(\);", r"void finish\(\) \{[^}]*?")),
    "before the warps' States merge": ("decode_mma", "race: reads shared byte .* no barrier lies",
        deleted(SPLITS, r"sync_block\(\);(?=[^\n]*\n  merge_warps)")),
    "after the leader's word": ("decode_mma", "race: .* shared byte .* no barrier lies between",
        deleted(SPLITS, r"sync\(\);", r"is_last_split = last[^}]*\}\s*")),
    "before K is read": ("prefill_fma", RACE,
        deleted(KERNEL, r"sync_block\(\);(?=\s*// K is there)")),
    "before V is read": ("prefill_fma", RACE,
        deleted(KERNEL, r"sync_block\(\);(?=\s*// V and P are there)")),
    "before the leader's word is read": ("prefill_fma", RACE,
        deleted(SPLITS, r"sync\(\);(?=\s*// the leader's word)")),
    "the fence before wgmma": ("prefill_wgmma", "no fence_async_shared of that thread lies between",
        deleted(PREFILL_CONSUMER, r"if \(C::paged && copied\) fence_async_shared\(\);")),
    "the wait for a block of keys": ("prefill_wgmma", f"{RACE}|in flight",
        deleted(PREFILL_CONSUMER, r"consumer_wait\(ring, n\);", r"await_keys\([^{]*{\s*")),
    "before a stage is read": ("backward_mma", RACE,
        deleted(KERNEL, r"sync_block\(\);(?=[^\n]*\n    if constexpr \(C::stages == 2\))")),
    "before P and dS are read": ("backward_mma", RACE,
        deleted(KERNEL, r"sync_block\(\);(?=\s*// P and dS are there)")),
    "before dS is read, ordered": ("backward_mma", RACE,
        deleted(KERNEL, r"sync_block\(\);(?=\s*// dS is there)")),
}  # fmt: skip
# What is handed on too early between the warps of backward_wgmma: dQ, dS and products.
HANDED_ON = {
    "a stage of dQ has been read": deleted(GRADIENTS, r"if \(n > 0\) mbarrier_wait[^;]*;"),
    "a stage of dQ is filled": deleted(GRADIENTS, r"consumer_wait\(ring, [^;]*;"),
    "dQ is seen by the copies": deleted(
        GRADIENTS, r"fence_async_shared\(\);(?=\s*// what the warps)"
    ),
    "dS is handed over": deleted(CONSUMER, r"mbarrier_wait\(smem\.ds_full, i & 1\);"),
    "dS has been read": Edit(CONSUMER, r"await_ds\(i - 1\);", ";"),
    "dP is there": deleted(CONSUMER, r"wgmma_wait<1>\(dp\);"),
    "Q has been read": deleted(CONSUMER, r"wgmma_wait\(dk\);"),
}
LEFT_OUT = Edit(SPLITS, r"first \+ lane < work.live_splits", "first + lane < work.live_splits - 1")
SEES = "int limit = 1;"
WRONG = {
    "decode_mma": {"a split left out": LEFT_OUT},
    "prefill_fma": {
        "a row does not see its own key": Edit(ROWS, SEES, "int limit = 0;"),
        "a row sees the key behind its own": Edit(ROWS, SEES, "int limit = 2;"),
        "aligned to the first key": Edit(ROWS, r"b\.past = [^;]*;", "b.past = 0;"),
        "masked at the end alone": Edit(KERNEL, r"least\(seen_by_all, b\.end_key\)", "b.end_key"),
        "never masked": Edit(KERNEL, r"mask<C>\(s, p, b, key\);", ";"),
        "the request before": Edit(ROWS, r"(?<=p\.cu_seqlens_k \+ b\.request)\);", " - 1);"),
        "another head of the group": Edit(
            ROWS, r"(?<=b\.kv_head \* p\.group \+ )\(packed - token \* p\.group\);", "0;"
        ),
        "o not rescaled": Edit(SOFTMAX, r"if \(warp_any\(", "if (false && warp_any("),
        "a split left out": LEFT_OUT,
    },
    "backward_mma": {
        "a row does not see its own key": Edit(PROBLEM, r"(?<=r\.past \+ row) \+ 1(?=,)", ""),
        "a row sees the key behind its own": Edit(
            PROBLEM, r"(?<=r\.past \+ row) \+ 1(?=,)", " + 2"
        ),
        "aligned to the first key": Edit(PROBLEM, r"r\.past = [^;]*;", "r.past = 0;"),
        "a tile of rows too late": Edit(PROBLEM, r"key - past\)", "key - past + 64)"),
        "never masked": Edit(SHARED, r"!seen\.whole && ", "false && "),
        "no delta": Edit(BACKWARD_ROWS, r"(?<=p\.row_delta \+ place, )delta\)", "0.f)"),
        "another head's V": Edit(KERNEL, r"work\.head(?= \* p\.v_stride_head)", "0"),
        "one head of the group": Edit(
            SHARED, r"kv_head \* p\.group \+ p\.group - 1", "kv_head * p.group"
        ),
        "dk not scaled": Edit(KERNEL, r"p\.dk, dk, p\.scale", "p.dk, dk, 1.f"),
        "dq not scaled": Edit(BACKWARD_ROWS, r"x\.v\[2 \* r\] \* p\.scale", "x.v[2 * r]"),
        "dq not cleared": Edit(
            BACKWARD_ROWS, r"store_global\(sums \+ j \* row_threads, f32x4\{\}\);", ";"
        ),
        "P for dS": Edit(KERNEL, r"left<true>\(smem\.ds,", "left<true>(smem.p,"),
    },
}
WRONG_CASES = [
    pytest.param(kernel, edit, id=f"{kernel}: {name}")
    for kernel, edits in WRONG.items()
    for name, edit in edits.items()
]


def run(kernel, spec, *, barrier=None):
    """Run a changed kernel where its mistake shows: with checks, if it lacks a barrier."""
    checks = {"checks": barrier is not None}
    if kernel == "backward_mma":
        lengths = ((150, 20), (200, 20)) if barrier else ((3, 70, 90), (40, 200, 70))
        case = backward_case(*lengths, kv_heads=1 if barrier else 2, head_dim=128)
        run_backward(case, spec, deterministic="ordered" in (barrier or ""), **checks)
    elif kernel == "prefill_wgmma":
        case = prefill_case((20,), (200,), kv_heads=1, head_dim=128, page_size=1, layout="nhd")
        run_checked(case, spec, **checks)
    elif kernel == "prefill_fma":
        case = prefill_case((3, 70, 20), (40, 200, 7), kv_heads=1)
        run_checked(case, spec, keys_per_split=128, **checks)
    else:
        case = decode_case((5, 200) if barrier else RAGGED)
        run_checked(case, spec, keys_per_split=128 if barrier else 512, **checks)


@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_deleted_barrier_is_named(barrier):
    kernel, words, edit = BARRIERS[barrier]
    with pytest.raises(HostKernelError, match=words) as caught:
        run(kernel, mutated(SPECS[kernel], edit), barrier=barrier)
    assert re.search(r"block \(\d+, 0, \d\), thread \d+: ", str(caught.value))
    assert shutil.which("addr2line") is None or re.search(r"\w\.cuh:\d+", str(caught.value))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("edit", HANDED_ON.values(), ids=HANDED_ON)
def test_what_is_handed_on_too_early_is_found(edit):
    right, case = SPECS["backward_wgmma"], backward_case((400,), (300,), kv_heads=1)
    run_backward(case, right, checks=True)
    with pytest.raises((AssertionError, HostKernelError), match=EARLY):
        run_backward(case, mutated(right, edit), checks=True)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("kernel", "edit"), WRONG_CASES)
def test_a_wrong_kernel_is_found(kernel, edit):
    with pytest.raises((AssertionError, HostKernelError), match=FOUND):
        run(kernel, mutated(SPECS[kernel], edit))
