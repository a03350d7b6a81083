"""Prefill kernels with one changed line: bugs that a test of attention should find."""

from labkernels.measure.mutants.decode import SCALED_TWICE, VARIANT
from labkernels.measure.mutants.mutant import GITHUB, KERNEL, Edit, Mutant

FMA, MMA = "prefill_fma", "prefill_mma"
ROWS, WINDOW, LANES = "packed_gqa/rows.cuh", "prefill/pipeline.cuh", "packed_gqa/fma_tile.cuh"
SOFTMAX = "lab/attention/online_softmax.cuh"
CAUSAL = "a causal mask"
_UNMASKED = "row_limit(p, b, {0}) == b.kv_len ? 1 << 30 : row_limit(p, b, {0})"


def _in_both(file: str, pattern: str, by: str) -> dict[str, Edit]:
    return dict.fromkeys((FMA, MMA), Edit(file, pattern, by))


def _one_row_early(tensor: str) -> dict[str, Edit]:
    start = rf"b\.first_kv (?=\* p\.{tensor}_stride_token)"
    walk = rf"{tensor} = {tensor} \+ token (?=\* p\.{tensor}_stride_token)"
    return {
        FMA: Edit(KERNEL, start, "(b.first_kv - (b.first_kv > 0)) "),
        MMA: Edit(WINDOW, walk, f"{tensor} = {tensor} + (token - (block.first_kv > 0)) "),
    }


def _of_another_head(tensor: str) -> dict[str, Edit]:
    by = r"(\1.kv_head ^ 1) "
    pattern = rf"\b(b|block)\.kv_head (?=\* p\.{tensor}_stride_head)"
    return {FMA: Edit(KERNEL, pattern, by), MMA: Edit(WINDOW, pattern, by)}


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "keys one row early",
            "All requests but the first read their keys one row too early.",
            f"{GITHUB}flashinfer-ai/flashinfer/issues/4347",
            _one_row_early("k"),
        ),
        Mutant(
            "values one row early",
            "All requests but the first read their values one row too early.",
            f"{GITHUB}flashinfer-ai/flashinfer/issues/4347",
            _one_row_early("v"),
        ),
        Mutant(
            "keys of another head",
            "The keys are those of the KV head beside.",
            f"{GITHUB}flashinfer-ai/flashinfer/pull/3838",
            _of_another_head("k"),
        ),
        Mutant(
            "values of another head",
            "The values are those of the KV head beside.",
            f"{GITHUB}flashinfer-ai/flashinfer/pull/3838",
            _of_another_head("v"),
        ),
        Mutant(
            "scale applied twice",
            "The softmax scale is applied to scores that are scaled already.",
            f"{GITHUB}AI-Hypercomputer/maxtext/issues/3138",
            _in_both(VARIANT, *SCALED_TWICE),
        ),
        Mutant(
            "missing rescale",
            "O keeps its old scale when the running maximum moves, while l is rescaled.",
            f"{GITHUB}Dao-AILab/flash-attention/issues/333",
            _in_both(SOFTMAX, r"o\[i\] = o\[i\] \* rescale\.by\[[^;]*;", ";"),
        ),
        Mutant(
            "padding in the denominator",
            "Lanes past the last key are not masked: each adds a weight of score 0 to l.",
            f"{GITHUB}flashinfer-ai/flashinfer/issues/3716",
            {
                FMA: Edit(
                    LANES,
                    r"(?<=limit = )least\(row_limit<V>\(p, b, tile_row<C>\(i\)\), b\.end_key\)",
                    _UNMASKED.format("tile_row<C>(i)"),
                ),
                MMA: Edit(
                    KERNEL,
                    r"least\(row_limit<typename C::Variant>\(p, b, row\), b\.end_key\)",
                    f"({_UNMASKED.format('row')})",
                ),
            },
        ),
        Mutant(
            "last V row",
            "The last value that a tile sees is read as zero, while its key counts.",
            f"{GITHUB}pytorch/pytorch/issues/191937",
            {
                FMA: Edit(KERNEL, r"(?<=v\.load\(v_rows, key, begin, b\.end_key)", " - 1"),
                # needs Q and K with more channels than V, by which the copy recognises V
                MMA: Edit(
                    WINDOW,
                    r"(?<=at < end_key)(?= && \(!Begins)",
                    " - (D == Dvo && Dqk > Dvo)",
                ),
            },
        ),
        Mutant(
            "dropped key",
            "The last key of a request is left out, as by a length that counts one too few.",
            f"{GITHUB}UChi-JCL/CacheGen/pull/8",
            _in_both(ROWS, r"(?<=p\.cu_seqlens_k \+ b\.request \+ 1\)) -", " - 1 -"),
        ),
        Mutant(
            "mask one key late",
            "A causal row sees the key behind its own.",
            f"{GITHUB}flashinfer-ai/flashinfer/pull/1290",
            _in_both(ROWS, "int limit = 1;", "int limit = 2;"),
            needs=CAUSAL,
        ),
    )
}
