"""Decode kernels with one changed line, each after a publicly reported bug: tests must find them.

A mutant is an edit of the real source for each kernel that has the line. A mutant is compiled like
any other kernel, for the CPU or a GPU.
"""

import functools
from dataclasses import dataclass

from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure.mutants.mutant import GITHUB, KERNEL, Edit, Mutant

KERNELS = ("decode_fma", "decode_mma", "decode_mma_n8")
PAGES = "decode/problem.cuh"
SOFTMAX, SPLITS = "lab/attention/online_softmax.cuh", "lab/attention/split_kv.cuh"
VARIANT = "lab/attention/variant.cuh"
SCALED_TWICE = (r"(?<=else return )p\.scale_log2", r"\g<0> * (\g<0> / 1.442695f)")
HIGH_PAGES, EMPTY_REQUEST = "high pages", "empty request"
WRAP = 2**32  # elements: where an offset of 32 bits wraps to 0
Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 16, 4, 128, 16


@dataclass(frozen=True)
class Shape:
    """Requests of a workload, and keys per split; all lengths then cost about the same."""

    batch: int
    keys_per_split: int


# The last step of 16 keys holds one key, and no last split would be empty with one key fewer.
LENGTHS = {
    305: Shape(8, 256),
    1009: Shape(4, 256),
    2033: Shape(2, 512),
    8177: Shape(1, 2048),
}


def exposing_case(
    mutant: Mutant, kv_len: int, dtype: str, *, seed: int, device: str
) -> DecodeInputs:
    """Return inputs that show the bug: several requests (but the longest), almost empty last steps.

    Raises: ValueError unless kv_len is one of LENGTHS.
    """
    if kv_len not in LENGTHS:
        raise ValueError(f"kv_len = {kv_len}, allowed: {', '.join(map(str, LENGTHS))}")
    lengths = (kv_len,) * LENGTHS[kv_len].batch
    if mutant.needs == EMPTY_REQUEST:
        lengths = (0, *lengths)
    workload = Decode(lengths, Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, dtype)
    return decode_inputs(workload, ExactNormal(seed, device))


def decode(mutant: Mutant, kernel: str, case: DecodeInputs):
    """Run a kernel with the bug on one of its cases, and return its output.

    Shapes: [B, Hq, D]. Elements that the kernel does not write are zeros, as in fresh memory.
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
    """Return the output of run(cache), with the cache in a pool of more than 2^32 elements.

    The second half of each request's pages lies beyond 2^32 elements. K and V of a page are
    neighbours. A wrapped offset reads memory that was never written.
    """
    import torch

    from labkernels.kernels.caches.paged import PagedKV

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
    """Return zeros of a tensor's dtype and device; on a CPU, untouched memory takes no room."""
    import numpy as np
    import torch

    if like.is_cuda:
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    return torch.from_numpy(np.zeros(shape, np.int16)).view(like.dtype)


def _in_all(file: str, pattern: str, by: str) -> dict[str, Edit]:
    return dict.fromkeys(KERNELS, Edit(file, pattern, by))


def _in_each(fma: tuple[str, str] | None, mma: tuple[str, str], n8: tuple[str, str]):
    """Return edits of the kernels' own files; decode_fma does not have every line."""
    edits = dict(zip(KERNELS, (fma, mma, n8), strict=True))
    return {name: Edit(KERNEL, *edit) for name, edit in edits.items() if edit is not None}


def _truncated(p: str, kind: str) -> str:
    """Return C++ that truncates p to a format; the value of 1 + 2^-8 in it tells which it is."""
    mask = f"(rounded<{kind}>(1.00390625f) == 1.f ? 0xffff0000u : 0xffffe000u)"
    return f"{p} = bits_to_float(float_to_bits({p}) & {mask});"


_NARROW_SUM = (
    r"promote<P>\(o, fresh\);",
    r"\g<0> for (int i = 0; i < 4; ++i) o[i] = rounded<T>(o[i]);",
)
_NEVER_RESCALED = Edit(SOFTMAX, r"if \(warp_any\(", "if (false && warp_any(")
# The code between exponentiates scores by the new maximum; after a small move the old one returns.
_STALE = (
    r"const float old_m = m[r], old_l = l[r]; \1"
    r" const bool stale = m[r] - old_m <= 8.f; if (stale) { rescale.by[r] = 1.f; l[r] = old_l; }"
    r"\2 if (stale) m[r] = old_m; "
)

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "dropped key",
            "The last key of a request is left out, as by a length that counts one too few.",
            f"{GITHUB}UChi-JCL/CacheGen/pull/8",
            _in_all(PAGES, r"end < kv_len \? end : kv_len", "end < kv_len ? end : kv_len - 1"),
        ),
        Mutant(
            "extra key",
            "One key past the end is attended to: a stale one of the cache's last page.",
            f"{GITHUB}vllm-project/vllm-xpu-kernels/pull/181",
            _in_all(PAGES, r"end < kv_len \? end : kv_len", "end <= kv_len ? end : kv_len + 1"),
        ),
        Mutant(
            "padding in the denominator",
            "Lanes past the end are not masked: each adds a weight of score 0 to l.",
            f"{GITHUB}flashinfer-ai/flashinfer/issues/3716",
            _in_each(
                (r"if \(pipeline\.ragged\(\)\).*?minus_infinity\(\);", ""),
                (r"if \(pipeline\.ragged\(\)\) mask[^;]*;", ""),
                (r"if \(pipeline\.ragged\(\)\) mask[^;]*;", ""),
            ),
        ),
        Mutant(
            "duplicated lane index",
            "One lane index is wrong, so that half of a step's keys are read twice.",
            f"{GITHUB}flashinfer-ai/flashinfer/issues/949",
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
            f"{GITHUB}flashinfer-ai/flashinfer/issues/4347",
            _in_all(PAGES, r"pages \+ slot\)", "pages + (slot == 3 ? 4 : slot))"),
        ),
        Mutant(
            "page offset in 32 bits",
            "page * stride wraps at 2^32 elements: keys high in a large pool are read low.",
            f"{GITHUB}flashinfer-ai/flashinfer/issues/3130",
            _in_all(
                PAGES,
                r"offset = page \* stride_page",
                "offset = static_cast<i64>(static_cast<u32>(page) * static_cast<u32>(stride_page))",
            ),
            needs=HIGH_PAGES,
        ),
        Mutant(
            "O accumulated in 16 bits",
            "The sum over the keys is kept in the input's format.",
            f"{GITHUB}ggml-org/llama.cpp/issues/28124",
            _in_each(
                (
                    r"fma_rn\(p\[key\]\[row\], v\[c\], o\[row\]\[c\]\)",
                    r"rounded<typename C::T>(\g<0>)",
                ),
                _NARROW_SUM,
                _NARROW_SUM,
            ),
        ),
        Mutant(
            "P truncated",
            "The weights are cut to 16 bits and not rounded, so that all errors have one sign.",
            f"{GITHUB}tenstorrent/tt-metal/pull/19882",
            dict.fromkeys(
                KERNELS[1:],
                Edit(
                    SOFTMAX,
                    r"score = add<P, T>\(r, score, scale_log2\);",
                    r"\g<0> " + _truncated("score", "T"),
                ),
            ),
        ),
        Mutant(
            "wrong merge base",
            "Splits are merged with exp where their maxima are in base 2.",
            f"{GITHUB}vllm-project/vllm/pull/47079",
            _in_all(
                SPLITS,
                r"weight = exp2<P>\(part_m - m\)",
                "weight = exp2<P>(1.442695f * part_m - 1.442695f * m)",
            ),
        ),
        Mutant(
            "missing rescale",
            "O keeps its old scale when the running maximum moves, while l is rescaled.",
            f"{GITHUB}Dao-AILab/flash-attention/issues/333",
            {
                "decode_fma": Edit(KERNEL, r"if \(!warp_any\(", "if (true || !warp_any("),
                "decode_mma": _NEVER_RESCALED,
                "decode_mma_n8": _NEVER_RESCALED,
            },
        ),
        Mutant(
            "sparse race",
            "A missing barrier, modelled without chance: one warp's part of four channels comes too"
            " late to be merged.",
            f"{GITHUB}triton-lang/triton/issues/10590",
            _in_all(
                SPLITS,
                r"merge\(l, o, weight, states\.l\[w\]\[row\], part\);",
                r"const f32x4 kept = o[0]; \g<0> if (w == Warps - 1 && work.split == 0 &&"
                r" (head_index(p, work, row) * quads + dim / 4) % 256 == 77) o[0] = kept;",
            ),
        ),
        Mutant(
            "stale maximum",
            "A small move of the maximum is skipped, but P was already taken relative to the new.",
            f"{GITHUB}ROCm/rocm-libraries/pull/6498",
            _in_all(
                SOFTMAX,
                r"(rescale\.by\[r\] = raise<P>\([^;]*;)(.*?)(?=    \}\n    return rescale;)",
                _STALE,
            ),
        ),
        Mutant(
            "last V row",
            "The last value of a split is read as zero, while its key counts.",
            f"{GITHUB}pytorch/pytorch/issues/191937",
            _in_all(PAGES, r"(?<=valid = first_key \+ row < end_key)", " - (pool == v ? 1 : 0)"),
        ),
        Mutant(
            "head mix-up",
            "The keys are those of the KV head beside.",
            f"{GITHUB}flashinfer-ai/flashinfer/pull/3838",
            _in_all(PAGES, r"(?<=p\.k_pool\) \+ )w\.kv_head", "(w.kv_head ^ 1)"),
        ),
        Mutant(
            "unwritten row",
            "The merge stops a row early: one query head keeps what was in memory, here zeros.",
            f"{GITHUB}flashinfer-ai/flashinfer/issues/1395",
            _in_all(
                SPLITS,
                r"row < row_count\(work\); row \+= Warps",
                "row < row_count(work) - (head_index(p, work, 0) % p.q_heads == 0); row += Warps",
            ),
        ),
        Mutant(
            "scale applied twice",
            "The softmax scale is applied to scores that are scaled already.",
            f"{GITHUB}AI-Hypercomputer/maxtext/issues/3138",
            _in_all(VARIANT, *SCALED_TWICE),
        ),
        Mutant(
            "NaN without keys",
            "A request without keys gives NaN: its maximum of -inf is subtracted from itself.",
            f"{GITHUB}flashinfer-ai/flashinfer/pull/363",
            _in_all(SOFTMAX, r"bits_to_float\(0xff7fffffu\)", "minus_infinity()"),
            needs=EMPTY_REQUEST,
        ),
    )
}
