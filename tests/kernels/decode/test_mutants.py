"""The checker or the contract finds each mistake that is seeded in the decode kernels."""

import re
import shutil

import pytest

from labkernels.cuda.host.build import HostKernelError
from labkernels.measure.mutants.decode import MUTANTS, SPLITS
from labkernels.measure.mutants.mutant import KERNEL, Edit, mutated
from tests.kernels.contract import CUDA, RAGGED, run_checked
from tests.kernels.decode.cases import decode_case

PIPELINE = "decode/pipeline.cuh"
IN_FLIGHT = "reads shared byte .* while the cp_async_16 of thread .* is in flight"
# file, the code before what is deleted, what is deleted, what the checker says
BARRIERS = {
    "sync_warp of wait_k": (PIPELINE, r"void wait_k\(\) \{[^}]*?", r"sync_warp\(\);", IN_FLIGHT),
    "sync_warp of wait_v": (PIPELINE, r"void wait_v\(\) \{[^}]*?", r"sync_warp\(\);", IN_FLIGHT),
    "wait of wait_k": (PIPELINE, r"void wait_k\(\) \{\s*", r"cp_async_wait<[^>]*>\(\);", IN_FLIGHT),
    "sync_block before Q is read": (
        KERNEL,
        r"wait_earlier_copies\(\);\s*",
        r"sync_block\(\);",
        "reads shared byte .* which no thread wrote|" + IN_FLIGHT,
    ),
    "sync_block before the States take the stages' place": (
        PIPELINE,
        r"void finish\(\) \{[^}]*?",
        r"sync_block\(\);",
        "writes shared byte .* is in flight|race: writes shared byte",
    ),
    "sync_block before the warps' States merge": (
        SPLITS,
        r"",
        r"sync_block\(\);(?=[^\n]*\n  merge_warps)",
        "race: reads shared byte .* wrote it at .* no barrier lies between",
    ),
    "sync_block after the leader's word": (
        SPLITS,
        r"is_last_split = last[^}]*\}\s*",
        r"sync\(\);",
        "race: .* shared byte .* no barrier lies between",
    ),
}
FOUND = "(out|lse2) is .* off where|NaN or infinity in out|without keys is not"
# mistakes that exceed the contract's bounds; others, such as P truncated, stay inside them
GROSS = (
    "dropped key",
    "padding in the denominator",
    "duplicated lane index",
    "wrong page",
    "wrong merge base",
    "missing rescale",
    "stale maximum",
    "head mix-up",
    "scale applied twice",
    "NaN without keys",
)
SPLIT_LEFT_OUT = Edit(
    SPLITS, r"first \+ lane < work.live_splits", "first + lane < work.live_splits - 1"
)


@pytest.mark.parametrize(("file", "before", "deleted", "words"), BARRIERS.values(), ids=BARRIERS)
def test_a_deleted_barrier_is_named(file, before, deleted, words):
    spec = mutated(CUDA["decode_mma"], Edit(file, f"({before}){deleted}", r"\1"))
    with pytest.raises(HostKernelError, match=words) as caught:
        run_checked(decode_case((5, 200)), spec, keys_per_split=128, checks=True)
    assert re.search(r"block \(0, 0, \d\), thread \d+: ", str(caught.value))
    if shutil.which("addr2line"):
        assert re.search(
            r"(?:kernel|pipeline|problem|online_softmax|split_kv)\.cuh:\d+", str(caught.value)
        )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", range(len(GROSS)), ids=GROSS)
def test_a_wrong_kernel_is_found(number):
    mutant = MUTANTS[GROSS[number]]
    spec = mutant.spec(list(mutant.edits)[number % len(mutant.edits)])
    with pytest.raises((AssertionError, HostKernelError), match=FOUND):
        run_checked(decode_case(RAGGED), spec, keys_per_split=512)


def test_a_split_left_out_is_found():
    with pytest.raises(AssertionError, match=FOUND):
        run_checked(
            decode_case(RAGGED), mutated(CUDA["decode_mma"], SPLIT_LEFT_OUT), keys_per_split=512
        )
