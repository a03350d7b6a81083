"""Kernels call only functions of labkernels/cuda/include/lab and of their own operation."""

import re
from collections import Counter
from pathlib import Path

from tests.repo.files import read, with_suffix
from tests.repo.test_files import FUNCTION_LINES_MAX

VOCABULARY = Path("labkernels/cuda/include/lab")
LESSON = Path("labkernels/chapters/primers/first_kernel/attention_row.cu")  # in standard CUDA
KERNELS, TESTS_OF_KERNELS = Path("labkernels/kernels"), Path("tests/kernels")
RAW = re.compile(
    r"\basm\b|\b__\w+|\bthreadIdx\b|\bblockIdx\b|\bblockDim\b|\bgridDim\b|\bwarpSize\b"
    r"|\bcuda_\w+\.h\b|\bcooperative_groups\b|\bnvcuda\b"
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"][^>"]+[>"])', re.MULTILINE)


def kernel_sources():
    paths = [path for path in with_suffix(".cuh", ".cu") if VOCABULARY not in path.parents]
    return [path for path in paths if path != LESSON]


def every(check, paths):
    """Return what check(path) finds wrong, by path; fail where there is nothing to check."""
    assert len(paths) > 40
    return {str(path): found for path in paths if (found := check(path))}


def in_kernels():
    return [path for path in kernel_sources() if KERNELS in path.parents]


def test_kernels_use_no_raw_instruction():
    raw = every(
        lambda path: sorted(set(RAW.findall(COMMENT.sub("", read(path))))), kernel_sources()
    )
    assert not raw, f"{raw}: put a word for it in {VOCABULARY}, with its CPU meaning in host/"


def foreign_includes(path):
    allowed = ["lab/"]
    if KERNELS in path.parents:
        operation, *kernel = path.relative_to(KERNELS).parent.parts
        own = "/".join((operation, *kernel)) + "/"
        is_kernel = (path.parent / "spec.py").exists()  # else rungs, which replace parts of kernels
        allowed += ["packed_gqa/", own if is_kernel else f"{operation}/"]
        shared = {file.name for file in (KERNELS / operation).glob("*.cuh")}
        allowed += [f"{operation}/{name}" for name in sorted(shared)]
        if kernel == ["wgmma_fp8"]:  # prefill_wgmma with other operands
            allowed.append("prefill/wgmma/")
    if path.name == "calls.cuh":  # a primer's phases, each called by itself
        allowed.append("attention.cuh")
    if TESTS_OF_KERNELS in path.parents:
        allowed.append(f"{path.relative_to(TESTS_OF_KERNELS).parts[0]}/")
    own_ones = tuple(f'"{each}' for each in allowed)
    return [name for name in INCLUDE.findall(read(path)) if not name.startswith(own_ones)]


def test_kernels_include_the_vocabulary_and_their_operation_alone():
    assert not every(foreign_includes, kernel_sources())


def test_triton_kernels_hold_no_inline_assembly():
    kernels = [path for path in with_suffix(".py") if path.parts[:2] == ("labkernels", "kernels")]
    assert not [str(path) for path in kernels if "inline_asm" in read(path)]


SHELVES = ("core", "ampere", "hopper", "attention")
WORD = re.compile(r"LAB_DEVICE\s[^;{}()]*?(\w+)\s*\(")


def test_every_word_of_the_vocabulary_is_used_by_a_kernel_or_by_another_word():
    vocabulary = [path for path in with_suffix(".cuh") if path.parts[:-2] == VOCABULARY.parts]
    assert {path.parent.name for path in vocabulary} == set(SHELVES)
    users = [path for path in with_suffix(".cuh", ".cu") if path.parts[0] == "labkernels"]
    text = "\n".join(COMMENT.sub("", read(path)) for path in users)
    defined = WORD.findall("\n".join(COMMENT.sub("", read(path)) for path in vocabulary))
    assert len(defined) > 50
    said, as_definition = Counter(re.findall(r"\w+", text)), Counter(WORD.findall(text))
    dead = {word for word in defined if said[word] <= as_definition[word]} - {"operator"}
    assert not dead, f"words that nothing uses: {', '.join(sorted(dead))}"


# Arrays of registers: an alias of such an array, or an array within a function.
ALIAS = re.compile(r"(?:template <[^>]*> )?\s*using \w+ = (?:float|u32|f32x2)\[")
ARRAY = re.compile(r"\s{4,}(?:float|u32|u32x4|f32x4|i64) \w+\[.*;")
SHAPE = re.compile(r"//.*\[")


def registers_without_a_shape(path):
    lines = read(path).splitlines()
    return [
        f"{n}: {line.strip()}"
        for n, (above, line) in enumerate(zip(["", *lines], lines, strict=False), 1)
        if ALIAS.match(line) or (ARRAY.match(line) and "smem" not in line)
        if not SHAPE.search(line) and not SHAPE.search(above)
    ]


def test_registers_carry_their_shape():
    bare = every(registers_without_a_shape, in_kernels())
    assert not bare, f"without a shape, as in // [rows, keys]: {bare}"


def functions(path):
    """Yield each function of a CUDA source: its first line, and its number of lines."""
    lines = [re.sub(r"//.*", "", line) for line in read(path).splitlines()]
    for i, line in enumerate(lines):
        if not re.search(r"\bLAB_(DEVICE|KERNEL)\b", line) or line.lstrip().startswith("#"):
            continue
        depth, opened = 0, False
        for j in range(i, len(lines)):
            depth += lines[j].count("{") - lines[j].count("}")
            opened = opened or "{" in lines[j]
            if depth <= 0 and (opened or lines[j].rstrip().endswith(";")):
                yield i + 1, j - i + 1
                break


def test_cuda_functions_are_short():
    sources = [path for path in with_suffix(".cuh", ".cu") if path.parts[0] == "labkernels"]
    found = {f"{path}:{line}": n for path in sources for line, n in functions(path)}
    assert len(found) > 300
    long = {where: n for where, n in found.items() if n > FUNCTION_LINES_MAX}
    assert not long, f"functions longer than {FUNCTION_LINES_MAX} lines: {long}"
