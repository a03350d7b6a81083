"""triton_prefill: the same prefill in Triton, tensor cores on or off by a constexpr."""

from pathlib import Path

from labkernels.kernels.spec import (
    CUDA_CORES,
    TENSOR_CORES,
    KernelSpec,
    NumericPolicy,
    PrefillTile,
)

FEW_ROWS = 16  # the least that tl.dot takes
WIDE = {
    64: PrefillTile(128, 64, 4, 3, 2),
    128: PrefillTile(64, 64, 4, 3, 1),
    192: PrefillTile(64, 64, 4, 2, 2),
    256: PrefillTile(128, 64, 8, 2, 1),
}


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
    """Tile options; `stages` is Triton's num_stages, blocks_per_sm what its registers leave.

    Without tensor cores Triton keeps the fp32 operands of tl.dot in registers: more rows or keys,
    or fewer warps, spill.
    """
    if policy == CUDA_CORES:
        wide, few = PrefillTile(32, 32, 8, 1, 1), PrefillTile(16, 16, 8, 1, 2)
        if head_dim == 256:
            return (few,)
    else:
        wide, few = WIDE[head_dim], PrefillTile(FEW_ROWS, 64 if head_dim <= 128 else 32, 4, 2, 2)
    return (wide, few) if rows > FEW_ROWS else (few, wide)


SPEC = KernelSpec(
    name="triton_prefill",
    family="prefill",
    language="triton",
    idea="One Triton source; tl.dot on tensor cores or in fp32 FMAs, chosen by a constexpr.",
    parent="reference",
    folder=Path(__file__).parent,
    min_arch=80,
    policies=(TENSOR_CORES, CUDA_CORES),
    rows=None,
    tiles=tiles,
    runner="labkernels.kernels.triton_prefill.run",
    head_dims=(64, 128, 192, 256),
    kv=("ragged", "paged"),
)
