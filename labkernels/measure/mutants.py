"""Kernels with one line changed, each after a bug that was found in public: what a checker is for.

A mutant is an edit of the real source for each kernel that has the line; it is compiled like any
other kernel, for the CPU or a GPU.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from labkernels.cuda.cache import atomic_write, cache_dir, content_key
from labkernels.cuda.host_compiler import INCLUDE_DIRS
from labkernels.kernels.spec import KernelSpec, discover
from labkernels.measure.cases import DecodeCase, exact_decode_case
from labkernels.workload import Decode

KERNELS = ("decode_fma", "decode_mma", "decode_mma_n8")
KERNEL = "kernel.cuh"  # of whichever kernel it is
PAGES, STATE = "lab/paged_kv.cuh", "lab/state.cuh"
HIGH_PAGES, EMPTY_REQUEST = "high pages", "empty request"
WRAP = 2**32  # elements: where an offset of 32 bits begins again
Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 16, 4, 128, 16
_GITHUB = "https://github.com/"


@dataclass(frozen=True)
class Shape:
    """Requests of a workload, and keys a split, so that all lengths cost about the same."""

    batch: int
    keys_per_split: int


# A last step of 16 keys holds one, and a split left empty by one key fewer there is none.
LENGTHS = {
    305: Shape(8, 256),
    1009: Shape(4, 256),
    2033: Shape(2, 512),
    8177: Shape(1, 2048),
}


@dataclass(frozen=True)
class Edit:
    """The one match of `pattern` in a file of the include path becomes `by`."""

    file: str
    pattern: str
    by: str


@dataclass(frozen=True)
class Mutant:
    """A bug: what it does, where one like it was reported, and the edit for each kernel.

    needs: what a workload must have beside several splits and a last step that is not full, to show
    it: pages beyond 2^32 elements, or a request without keys.
    """

    name: str
    bug: str
    source: str
    edits: Mapping[str, Edit]
    needs: str = ""

    def spec(self, kernel: str) -> KernelSpec:
        """The kernel with this bug, as `ops.decode(kernel=...)` takes it.

        Raises: ValueError naming the kernels that have the line.
        """
        if kernel not in self.edits:
            allowed = ", ".join(self.edits)
            raise ValueError(f"kernel = {kernel!r}, allowed for {self.name!r}: {allowed}")
        return mutated(discover()[kernel], self.edits[kernel])


def mutated(spec: KernelSpec, edit: Edit) -> KernelSpec:
    """A kernel whose source has one edit; the changed file lies in the cache of compiled kernels.

    Raises: ValueError unless the pattern has exactly one match.
    """
    name = f"{spec.folder.name}/{edit.file}" if edit.file == KERNEL else edit.file
    original = next(path for root in INCLUDE_DIRS if (path := root / name).exists())
    text, found = re.subn(edit.pattern, edit.by, original.read_text(), flags=re.DOTALL)
    if found != 1:
        raise ValueError(f"pattern = {edit.pattern!r}, found {found} times in {name}, allowed: 1")
    overlay = cache_dir() / "mutants" / content_key(name, text)
    if not (overlay / name).exists():
        atomic_write(overlay / name, text.encode())
    return dataclasses.replace(spec, overlay=overlay)


def exposing_case(mutant: Mutant, kv_len: int, dtype: str, *, seed: int, device: str) -> DecodeCase:
    """A workload that shows the bug: several requests while they are short, half-empty last steps.

    Raises: ValueError unless kv_len is one of LENGTHS.
    """
    if kv_len not in LENGTHS:
        raise ValueError(f"kv_len = {kv_len}, allowed: {', '.join(map(str, LENGTHS))}")
    lengths = (kv_len,) * LENGTHS[kv_len].batch
    if mutant.needs == EMPTY_REQUEST:
        lengths = (0, *lengths)
    workload = Decode(lengths, Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, dtype)
    return exact_decode_case(workload, seed=seed, device=device)


def decode(mutant: Mutant, kernel: str, case: DecodeCase):
    """Run a kernel with the bug on one of its cases; returns its output.

    Shapes: [B, Hq, D]. Memory that nobody writes holds zeros, as fresh memory does.
    """
    import torch

    from labkernels import ops

    longest = max(case.workload.kv_lens)
    run = functools.partial(
        ops.decode,
        case.q,
        kernel=mutant.spec(kernel),
        keys_per_split=LENGTHS[longest].keys_per_split,
        scale=case.scale,
        out=torch.zeros_like(case.q),
    )
    return high_in_a_pool(case.cache, run) if mutant.needs == HIGH_PAGES else run(case.cache).out


def high_in_a_pool(cache, run):
    """The output of run(cache), with the cache in a pool of more than 2^32 elements.

    The second half of each row's pages lies beyond them; K and V of a page lie side by side. What
    a wrapped offset reads has never been written.
    """
    import torch

    from labkernels.kernels.paged_kv import PagedKV

    pages, *shape = cache.k.shape
    first_high = WRAP // (2 * cache.k[0].numel())
    pool = _zeros((first_high + pages, 2, *shape), cache.k)
    table = cache.page_table + pages
    half = table.shape[1] // 2
    table[:, half:] += first_high - pages
    old, new = cache.page_table.flatten().long(), table.flatten().long()
    pool[new, 0], pool[new, 1] = cache.k[old], cache.v[old]
    out = run(PagedKV(pool[:, 0], pool[:, 1], table, cache.kv_len)).out
    del pool
    if out.is_cuda:  # 8 GiB that other processes may be waiting for
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return out


def _zeros(shape: tuple[int, ...], like):
    """Zeros of a tensor's kind; on a CPU, memory that is not touched takes no room."""
    import numpy as np
    import torch

    if like.is_cuda:
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    return torch.from_numpy(np.zeros(shape, np.int16)).view(like.dtype)


def _in_all(file: str, pattern: str, by: str) -> dict[str, Edit]:
    return dict.fromkeys(KERNELS, Edit(file, pattern, by))


def _in_each(fma: tuple[str, str] | None, mma: tuple[str, str], n8: tuple[str, str]):
    """Edits of the kernels' own files; decode_fma does not have every line."""
    edits = dict(zip(KERNELS, (fma, mma, n8), strict=True))
    return {name: Edit(KERNEL, *edit) for name, edit in edits.items() if edit is not None}


def _truncated(p: str) -> str:
    """C++ that cuts p to the format T where it should be rounded; 1 + 2^-8 tells the formats."""
    mask = "(rounded<typename C::T>(1.00390625f) == 1.f ? 0xffff0000u : 0xffffe000u)"
    return f"{p} = bits_to_float(float_to_bits({p}) & {mask});"


_NARROW_SUM = (
    r"promote<P>\(o, fresh\);",
    r"\g<0> for (int i = 0; i < 4; ++i) o[i] = rounded<T>(o[i]);",
)
_STALE = r"if (!(m - {m} <= 8.f)) {m} = m;"

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "dropped key",
            "The last key of a request is left out, as by a length that counts one too few.",
            f"{_GITHUB}UChi-JCL/CacheGen/pull/8",
            _in_all(PAGES, r"end < kv_len \? end : kv_len", "end < kv_len ? end : kv_len - 1"),
        ),
        Mutant(
            "extra key",
            "One key past the end is attended to: a stale one of the cache's last page.",
            f"{_GITHUB}vllm-project/vllm-xpu-kernels/pull/181",
            _in_all(PAGES, r"end < kv_len \? end : kv_len", "end <= kv_len ? end : kv_len + 1"),
        ),
        Mutant(
            "padding in the denominator",
            "Lanes past the end are not masked: each adds a weight of score 0 to l.",
            f"{_GITHUB}flashinfer-ai/flashinfer/issues/3716",
            _in_each(
                (r"if \(pipeline\.ragged\(\)\).*?minus_infinity\(\);", ""),
                (r"if \(pipeline\.ragged\(\)\) mask[^;]*;", ""),
                (r"if \(pipeline\.ragged\(\)\) mask[^;]*;", ""),
            ),
        ),
        Mutant(
            "duplicated lane index",
            "One lane index is wrong, so that half of a step's keys are read twice.",
            f"{_GITHUB}flashinfer-ai/flashinfer/issues/949",
            _in_each(
                (
                    r"(rounds_per_reduction \+ i\) \* C::keys_at_once \+ lane / C::lanes);",
                    r"\1 / 2;",
                ),
                (r"(?<=b \* 16 \+ \(lane & 7\)) \+ \(lane >> 4\) \* 8", ""),
                (r"(?<=k_tile, b \* 16 \+ \(lane & )15", "7"),
            ),
        ),
        Mutant(
            "wrong page",
            "One entry of the page table is misread: the keys of another page of the request.",
            f"{_GITHUB}flashinfer-ai/flashinfer/issues/4347",
            _in_all(PAGES, r"pages \+ slot\)", "pages + (slot == 3 ? 4 : slot))"),
        ),
        Mutant(
            "page offset in 32 bits",
            "page * stride wraps at 2^32 elements: keys high in a large pool are read low.",
            f"{_GITHUB}flashinfer-ai/flashinfer/issues/3130",
            _in_all(
                PAGES,
                r"load_constant\(pages \+ slot\) \* stride_page",
                "static_cast<i64>(static_cast<u32>(load_constant(pages + slot)) *"
                " static_cast<u32>(stride_page))",
            ),
            needs=HIGH_PAGES,
        ),
        Mutant(
            "O accumulated in 16 bits",
            "The sum over the keys is kept in the input's format.",
            f"{_GITHUB}ggml-org/llama.cpp/issues/28124",
            _in_each(
                (
                    r"fma_rn\(p\[key\]\[row\], v\[c\], state\.o\[row\]\[c\]\)",
                    r"rounded<typename C::T>(\g<0>)",
                ),
                _NARROW_SUM,
                _NARROW_SUM,
            ),
        ),
        Mutant(
            "P truncated",
            "The weights are cut to 16 bits and not rounded, so that all errors have one sign.",
            f"{_GITHUB}tenstorrent/tt-metal/pull/19882",
            _in_each(
                None,
                (
                    r"state\.l\[r\] = state\.l\[r\] \+ s\[j\]\[i\];",
                    r"\g<0> " + _truncated("s[j][i]"),
                ),
                (r"state\.l\[n\]\[q\] = state\.l\[n\]\[q\] \+ p;", r"\g<0> " + _truncated("p")),
            ),
        ),
        Mutant(
            "wrong merge base",
            "Splits are merged with exp where their maxima are in base 2.",
            f"{_GITHUB}vllm-project/vllm/pull/47079",
            _in_all(
                STATE,
                r"weight = rescale_of<P>\(part_m, top\)",
                "weight = rescale_of<P>(1.442695f * part_m, 1.442695f * top)",
            ),
        ),
        Mutant(
            "missing rescale",
            "O keeps its old scale when the running maximum moves, while l is rescaled.",
            f"{_GITHUB}Dao-AILab/flash-attention/issues/333",
            _in_all(KERNEL, r"if \(warp_any\(", "if (false && warp_any("),
        ),
        Mutant(
            "sparse race",
            "A missing barrier, modelled without chance: one warp's part of four channels comes too"
            " late to be merged.",
            f"{_GITHUB}triton-lang/triton/issues/10590",
            _in_all(
                STATE,
                r"for \(int c = 0; c < 4; \+\+c\) (?=o\.v\[c\] = fma_rn\(weight)",
                r"for (int c = 0; c < 4; ++c) if (w < Warps - 1 || work.split > 0 ||"
                r" (head_index(p, work, row) * quads + dim / 4) % 256 != 77) ",
            ),
        ),
        Mutant(
            "stale maximum",
            "A small move of the maximum is skipped, but P was already taken relative to the new.",
            f"{_GITHUB}ROCm/rocm-libraries/pull/6498",
            _in_each(
                (
                    r"const float rescale = (rescale_of<P>\(state\.m, m\));\s*state\.m = m;",
                    r"const float rescale = m - state.m <= 8.f ? 1.f : \1;"
                    + _STALE.format(m="state.m"),
                ),
                (
                    r"rescale\[r\] = (rescale_of<P>\(state\.m\[r\], m\));\s*state\.m\[r\] = m;",
                    r"rescale[r] = m - state.m[r] <= 8.f ? 1.f : \1;"
                    + _STALE.format(m="state.m[r]"),
                ),
                (
                    r"rescale\[q\] = (rescale_of<P>\(state\.m\[n\]\[q\], m\));"
                    r"\s*state\.m\[n\]\[q\] = m;",
                    r"rescale[q] = m - state.m[n][q] <= 8.f ? 1.f : \1;"
                    + _STALE.format(m="state.m[n][q]"),
                ),
            ),
        ),
        Mutant(
            "last V row",
            "The last value of a split is read as zero, while its key counts.",
            f"{_GITHUB}pytorch/pytorch/issues/191937",
            _in_all(PAGES, r"(?<=valid = first_key \+ row < end_key)", " - (pool == v ? 1 : 0)"),
        ),
        Mutant(
            "head mix-up",
            "The keys are those of the KV head beside.",
            f"{_GITHUB}flashinfer-ai/flashinfer/pull/3838",
            _in_all(PAGES, r"(?<=p\.k_pool\) \+ )w\.kv_head", "(w.kv_head ^ 1)"),
        ),
        Mutant(
            "unwritten row",
            "The merge stops a row early: one query head keeps what was in memory, here zeros.",
            f"{_GITHUB}flashinfer-ai/flashinfer/issues/1395",
            _in_all(
                STATE,
                r"row < row_count\(work\); row \+= Warps",
                "row < row_count(work) - (head_index(p, work, 0) % p.q_heads == 0); row += Warps",
            ),
        ),
        Mutant(
            "scale applied twice",
            "The softmax scale is applied to scores that are scaled already.",
            f"{_GITHUB}AI-Hypercomputer/maxtext/issues/3138",
            _in_all(KERNEL, r"p\.scale_log2", r"\g<0> * (\g<0> / 1.442695f)"),
        ),
        Mutant(
            "NaN without keys",
            "A request without keys gives NaN: its maximum of -inf is subtracted from itself.",
            f"{_GITHUB}flashinfer-ai/flashinfer/pull/363",
            _in_all(STATE, r"(?<=return )m == minus_infinity\(\) \? 0\.f : m", "m"),
            needs=EMPTY_REQUEST,
        ),
    )
}
