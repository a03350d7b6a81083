"""The checker or the contract finds each mistake that is seeded in the prefill kernels."""

import pytest

from labkernels.cuda.host.build import HostKernelError
from labkernels.measure.mutants.decode import SOFTMAX, SPLITS
from labkernels.measure.mutants.mutant import KERNEL, Edit, mutated
from tests.kernels.contract import CUDA_PREFILLS, run_checked
from tests.kernels.prefill.cases import prefill_case

ROWS = "packed_gqa/rows.cuh"
RACE = "race: .* shared byte .* no barrier lies between|which no thread wrote"
# of prefill_fma: what is deleted
BARRIERS = {
    "before K is read": r"sync_block\(\);(?=\s*// K is there)",
    "before V is read": r"sync_block\(\);(?=\s*// V and P are there)",
    "before the leader's word is read": r"sync\(\);(?=\s*// the leader's word)",
}
# of prefill_wgmma, where warps copy pages of one key: what is deleted, and what the checks say
CONSUMER = "prefill/wgmma/consumer.cuh"
COPIES = {
    "the fence before wgmma": (
        Edit(CONSUMER, r"if \(C::paged && copied\) fence_async_shared\(\);", ""),
        "no fence_async_shared of that thread lies between",
    ),
    "the wait for a block of keys": (
        Edit(CONSUMER, r"(await_keys\([^{]*{\s*)consumer_wait\(ring, n\);", r"\1"),
        f"{RACE}|in flight",
    ),
}
FOUND = "(out|lse2) is .* off where|NaN or infinity in out|without keys is not|out of bounds"
WRONG = {
    "a row does not see its own key": Edit(ROWS, r"(?<=first_row \+ row\)) \+ 1;", ";"),
    "a row sees the key behind its own": Edit(ROWS, r"(?<=first_row \+ row\)) \+ 1;", " + 2;"),
    "aligned to the first key": Edit(ROWS, r"b\.past = [^;]*;", "b.past = 0;"),
    "masked at the end alone": Edit(KERNEL, r"least\(seen_by_all, b\.end_key\)", "b.end_key"),
    "never masked": Edit(KERNEL, r"mask<C>\(s, p, b, key\);", ";"),
    "the request before": Edit(ROWS, r"(?<=p\.cu_seqlens_k \+ b\.request)\);", " - 1);"),
    "another head of the group": Edit(
        ROWS, r"(?<=b\.kv_head \* p\.group \+ )\(packed - token \* p\.group\);", "0;"
    ),
    "o not rescaled": Edit(SOFTMAX, r"if \(warp_any\(", "if (false && warp_any("),
    "a split left out": Edit(
        SPLITS, r"first \+ lane < work.live_splits", "first + lane < work.live_splits - 1"
    ),
}


@pytest.mark.parametrize("deleted", BARRIERS.values(), ids=BARRIERS)
def test_a_deleted_barrier_is_found(deleted):
    file = SPLITS if "leader" in deleted else KERNEL
    spec = mutated(CUDA_PREFILLS["prefill_fma"], Edit(file, deleted, ""))
    case = prefill_case((70, 20), (200, 20), kv_heads=1)
    with pytest.raises(HostKernelError, match=RACE):
        run_checked(case, spec, keys_per_split=128, checks=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("edit", WRONG.values(), ids=WRONG)
def test_a_wrong_kernel_is_found(edit):
    spec = mutated(CUDA_PREFILLS["prefill_fma"], edit)
    case = prefill_case((3, 70, 20), (40, 200, 7), kv_heads=1)
    with pytest.raises((AssertionError, HostKernelError), match=FOUND):
        run_checked(case, spec, keys_per_split=128)


@pytest.mark.parametrize(("edit", "says"), COPIES.values(), ids=COPIES)
def test_what_copies_need_is_found_where_it_is_left_out(edit, says):
    spec = mutated(CUDA_PREFILLS["prefill_wgmma"], edit)
    case = prefill_case((20,), (200,), kv_heads=1, head_dim=128, page_size=1)
    with pytest.raises(HostKernelError, match=says):
        run_checked(case, spec, checks=True)
