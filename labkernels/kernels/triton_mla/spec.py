"""triton_mla: the same MLA decode in Triton, tensor cores on or off by a constexpr."""

from pathlib import Path

from labkernels.kernels.spec import (
    CUDA_CORES,
    TENSOR_CORES,
    KernelSpec,
    NumericPolicy,
    PrefillTile,
)

# By rows, the least that tl.dot takes first. 64 x 64 and 128 rows spill.
OPTIONS = (
    PrefillTile(16, 32, 4, 2, 2),
    PrefillTile(16, 64, 8, 2, 1),
    PrefillTile(32, 64, 8, 2, 1),
    PrefillTile(64, 32, 8, 2, 1),
)


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
    """Tile options; `stages` is Triton's num_stages, blocks_per_sm what its registers leave.

    Without tensor cores Triton keeps the fp32 operands of tl.dot in registers: more rows or keys
    spill.
    """
    del head_dim
    if policy == CUDA_CORES:
        return (PrefillTile(16, 16, 8, 1, 1),)
    wanted = min(max(rows, 16), 64)
    return tuple(
        sorted(OPTIONS, key=lambda tile: (tile.q_rows < wanted, abs(tile.q_rows - wanted)))
    )


SPEC = KernelSpec(
    name="triton_mla",
    family="mla",
    language="triton",
    idea="One Triton source; a latent row is loaded once for both products.",
    parent="reference_mla",
    folder=Path(__file__).parent,
    min_arch=80,
    policies=(TENSOR_CORES, CUDA_CORES),
    rows=None,
    tiles=tiles,
    runner="labkernels.kernels.triton_mla.run",
    head_dims=(576,),
)
