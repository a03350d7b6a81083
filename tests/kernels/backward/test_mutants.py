"""The checker or the contract finds each mistake that is seeded in two backward kernels."""

import pytest

from labkernels.cuda.host.build import HostKernelError
from labkernels.measure.mutants.mutant import KERNEL, Edit, mutated
from tests.kernels.backward.cases import CUDA_BACKWARDS, backward_case, run_checked

KEYS, ROWS = "backward/problem.cuh", "backward/rows.cuh"
PROBLEM, SHARED = "backward/problem.cuh", "backward/mma/gradients.cuh"
RACE = "race: .* shared byte .* no barrier lies between|which no thread wrote"
# what is deleted, and whether the ordered pass is run
BARRIERS = {
    "before a stage is read": (
        r"sync_block\(\);(?=[^\n]*\n    if constexpr \(C::stages == 2\))",
        False,
    ),
    "before P and dS are read": (r"sync_block\(\);(?=\s*// P and dS are there)", False),
    "before dS is read": (r"sync_block\(\);(?=\s*// dS is there)", True),
}
FOUND = "(dq|dk|dv) is .* off where|NaN or infinity in d|out of bounds"
WRONG = {
    "a row does not see its own key": Edit(PROBLEM, r"(?<=r\.past \+ row) \+ 1(?=,)", ""),
    "a row sees the key behind its own": Edit(PROBLEM, r"(?<=r\.past \+ row) \+ 1(?=,)", " + 2"),
    "aligned to the first key": Edit(KEYS, r"r\.past = [^;]*;", "r.past = 0;"),
    "a tile of rows too late": Edit(KEYS, r"key - past\)", "key - past + 64)"),
    "never masked": Edit(SHARED, r"!seen\.whole && ", "false && "),
    "no delta": Edit(ROWS, r"p\.row_delta \+ place, delta\)", "p.row_delta + place, 0.f)"),
    "another head's V": Edit(KERNEL, r"work\.head(?= \* p\.v_stride_head)", "0"),
    "one head of the group": Edit(
        SHARED, r"kv_head \* p\.group \+ p\.group - 1", "kv_head * p.group"
    ),
    "dk not scaled": Edit(KERNEL, r"p\.dk, dk, p\.scale", "p.dk, dk, 1.f"),
    "dq not scaled": Edit(ROWS, r"x\.v\[2 \* r\] \* p\.scale", "x.v[2 * r]"),
    "dq not cleared": Edit(ROWS, r"store_global\(sums \+ j \* row_threads, f32x4\{\}\);", ";"),
    "P for dS": Edit(KERNEL, r"left<true>\(smem\.ds,", "left<true>(smem.p,"),
}

CONSUMER, GRADIENTS = "backward/wgmma/consumer.cuh", "backward/wgmma/gradients.cuh"
EARLY = f"{RACE}|in flight|fence_async_shared|NaN or infinity in dq"
# what is deleted where warps hand over dQ, dS and products
HANDED_ON = {
    "a stage of dQ has been read": Edit(GRADIENTS, r"if \(n > 0\) mbarrier_wait[^;]*;", ""),
    "a stage of dQ is filled": Edit(GRADIENTS, r"consumer_wait\(ring, [^;]*;", ""),
    "dQ is seen by the copies": Edit(
        GRADIENTS, r"fence_async_shared\(\);(?=\s*// what the warps)", ""
    ),
    "dS is handed over": Edit(CONSUMER, r"mbarrier_wait\(smem\.ds_full, i & 1\);", ""),
    "dS has been read": Edit(CONSUMER, r"await_ds\(i - 1\);", ";"),
    "dP is there": Edit(CONSUMER, r"wgmma_wait<1>\(dp\);", ""),
    "Q has been read": Edit(CONSUMER, r"wgmma_wait\(dk\);", ""),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("edit", HANDED_ON.values(), ids=HANDED_ON)
def test_what_is_handed_on_too_early_is_found(edit):
    spec = mutated(CUDA_BACKWARDS["backward_wgmma"], edit)
    case = backward_case((400,), (300,), kv_heads=1, head_dim=64)
    run_checked(case, CUDA_BACKWARDS["backward_wgmma"], checks=True)
    with pytest.raises((AssertionError, HostKernelError), match=EARLY):
        run_checked(case, spec, checks=True)


@pytest.mark.parametrize(("deleted", "deterministic"), BARRIERS.values(), ids=BARRIERS)
def test_a_deleted_barrier_is_found(deleted, deterministic):
    spec = mutated(CUDA_BACKWARDS["backward_mma"], Edit(KERNEL, deleted, ""))
    case = backward_case((150, 20), (200, 20), kv_heads=1, head_dim=128)
    with pytest.raises(HostKernelError, match=RACE):
        run_checked(case, spec, deterministic=deterministic, checks=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("edit", WRONG.values(), ids=WRONG)
def test_a_wrong_kernel_is_found(edit):
    spec = mutated(CUDA_BACKWARDS["backward_mma"], edit)
    case = backward_case((3, 70, 90), (40, 200, 70), head_dim=128)
    with pytest.raises((AssertionError, HostKernelError), match=FOUND):
        run_checked(case, spec)
