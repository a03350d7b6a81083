"""Prefill kernels with one line changed: what a test of attention is there to find."""

from labkernels.measure.mutants import KERNEL, Edit, Mutant

KERNELS = ("prefill_fma",)
ROWS = "lab/prefill.cuh"
CAUSAL = "a causal mask"
_GITHUB = "https://github.com/"


def _in_all(file: str, pattern: str, by: str) -> dict[str, Edit]:
    return dict.fromkeys(KERNELS, Edit(file, pattern, by))


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "keys one row early",
            "All requests but the first read their keys one row too early.",
            f"{_GITHUB}flashinfer-ai/flashinfer/issues/4347",
            _in_all(
                KERNEL, r"b\.first_kv (?=\* p\.k_stride_token)", "(b.first_kv - (b.first_kv > 0)) "
            ),
        ),
        Mutant(
            "values one row early",
            "All requests but the first read their values one row too early.",
            f"{_GITHUB}flashinfer-ai/flashinfer/issues/4347",
            _in_all(
                KERNEL, r"b\.first_kv (?=\* p\.v_stride_token)", "(b.first_kv - (b.first_kv > 0)) "
            ),
        ),
        Mutant(
            "keys of another head",
            "The keys are those of the KV head beside.",
            f"{_GITHUB}flashinfer-ai/flashinfer/pull/3838",
            _in_all(KERNEL, r"b\.kv_head (?=\* p\.k_stride_head)", "(b.kv_head ^ 1) "),
        ),
        Mutant(
            "values of another head",
            "The values are those of the KV head beside.",
            f"{_GITHUB}flashinfer-ai/flashinfer/pull/3838",
            _in_all(KERNEL, r"b\.kv_head (?=\* p\.v_stride_head)", "(b.kv_head ^ 1) "),
        ),
        Mutant(
            "scale applied twice",
            "The softmax scale is applied to scores that are scaled already.",
            f"{_GITHUB}AI-Hypercomputer/maxtext/issues/3138",
            _in_all(KERNEL, r"p\.scale_log2", r"\g<0> * (\g<0> / 1.442695f)"),
        ),
        Mutant(
            "missing rescale",
            "O keeps its old scale when the running maximum moves, while l is rescaled.",
            f"{_GITHUB}Dao-AILab/flash-attention/issues/333",
            _in_all(KERNEL, r"if \((!FOLD && )?warp_any\(", "if (false && warp_any("),
        ),
        Mutant(
            "padding in the denominator",
            "Lanes past the last key are not masked: each adds a weight of score 0 to l.",
            f"{_GITHUB}flashinfer-ai/flashinfer/issues/3716",
            _in_all(
                KERNEL,
                r"(?<=limit = )least\(row_limit\(p, b, tile_row<C>\(i\)\), b\.end_key\)",
                "row_limit(p, b, tile_row<C>(i)) == b.kv_len ? 1 << 30"
                " : row_limit(p, b, tile_row<C>(i))",
            ),
        ),
        Mutant(
            "last V row",
            "The last value of a request is read as zero, while its key counts.",
            f"{_GITHUB}pytorch/pytorch/issues/191937",
            _in_all(KERNEL, r"(?<=v\.load\(v_rows, key, b\.end_key)", " - (b.end_key == b.kv_len)"),
        ),
        Mutant(
            "dropped key",
            "The last key of a request is left out, as by a length that counts one too few.",
            f"{_GITHUB}UChi-JCL/CacheGen/pull/8",
            _in_all(ROWS, r"(?<=p\.cu_seqlens_k \+ b\.request \+ 1\)) -", " - 1 -"),
        ),
        Mutant(
            "mask one key late",
            "A causal row sees the key behind its own.",
            f"{_GITHUB}flashinfer-ai/flashinfer/pull/1290",
            _in_all(ROWS, r"(?<=/ p\.group) \+ 1;", " + 2;"),
            needs=CAUSAL,
        ),
    )
}
