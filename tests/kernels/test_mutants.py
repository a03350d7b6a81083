"""Mistakes seeded in the kernels: each must be found, or the tests that pass prove little."""

import re
import shutil

import pytest

from labkernels.cuda.host import HostKernelError
from tests.kernels.cases import decode_case
from tests.kernels.contract import RAGGED, run_checked
from tests.kernels.mutants import use_mutant

KERNEL, PIPELINE = "kernel.cuh", "lab/warp_pipeline.cuh"
STATE, PAGES = "lab/state.cuh", "lab/paged_kv.cuh"
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
        STATE,
        r"",
        r"sync_block\(\);(?=[^\n]*\n  merge_warps)",
        "race: reads shared byte .* wrote it at .* no barrier lies between",
    ),
    "sync_block after the verdict": (
        STATE,
        r"verdict = last[^}]*\}\s*",
        r"sync_block\(\);",
        "race: .* shared byte .* no barrier lies between",
    ),
}
FOUND = "out is .* off where|lse2 is .* off where|NaN or infinity in out|is out of bounds"
# kernel, file, pattern, what it becomes
WRONG = {
    "keys past the end not masked": (
        "decode_mma",
        KERNEL,
        r"if \(pipeline\.ragged\(\)\)[^;]*;",
        "",
    ),
    "the last key forgotten": (
        "decode_mma_n8",
        PAGES,
        r"end < kv_len \? end : kv_len",
        "end < kv_len ? end : kv_len - 1",
    ),
    "the token before": (
        "decode_fma",
        PAGES,
        r"\(key - slot \* page_size\)",
        "(key == slot * page_size ? 0 : key - slot * page_size - 1)",
    ),
    "the page after": ("decode_fma", PAGES, r"pages \+ slot\)", "pages + (key + 1) / page_size)"),
    "o not rescaled": ("decode_mma", KERNEL, r"if \(warp_any\(", "if (false && warp_any("),
    "a KV head beside": (
        "decode_mma_n8",
        PAGES,
        r"(?<=p.k_pool\) \+ )w\.kv_head",
        "(w.kv_head ^ 1)",
    ),
    "a split left out": (
        "decode_mma",
        STATE,
        r"first \+ lane < work\.live_splits",
        "first + lane < work.live_splits - 1",
    ),
}


@pytest.mark.parametrize(("file", "before", "deleted", "words"), BARRIERS.values(), ids=BARRIERS)
def test_a_deleted_barrier_is_named(file, before, deleted, words, tmp_path, monkeypatch):
    use_mutant(monkeypatch, tmp_path, "decode_mma", file, f"({before}){deleted}", r"\1")
    with pytest.raises(HostKernelError, match=words) as caught:
        run_checked(decode_case((5, 200)), "decode_mma", keys_per_split=128, checks=True)
    assert re.search(r"block \(0, 0, \d\), thread \d+: ", str(caught.value))
    if shutil.which("addr2line"):
        assert re.search(r"(?:kernel|paged_kv|state)\.cuh:\d+", str(caught.value))


@pytest.mark.parametrize(("kernel", "file", "pattern", "by"), WRONG.values(), ids=WRONG)
def test_a_wrong_kernel_is_found(kernel, file, pattern, by, tmp_path, monkeypatch):
    use_mutant(monkeypatch, tmp_path, kernel, file, pattern, by)
    with pytest.raises((AssertionError, HostKernelError), match=FOUND):
        run_checked(decode_case(RAGGED), kernel, keys_per_split=512)
