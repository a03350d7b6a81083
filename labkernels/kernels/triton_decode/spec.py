"""triton_decode: the same decode in Triton, tensor cores on or off by a constexpr."""

from pathlib import Path

from labkernels.kernels.spec import CUDA_CORES, TENSOR_CORES, DecodeTile, KernelSpec

MAX_ROWS = 16


def rows(group: int) -> int:
    """Query rows of a program: tl.dot takes 16 at least."""
    return max(MAX_ROWS, 1 << (group - 1).bit_length())


def tiles(head_dim: int, rows: int) -> tuple[DecodeTile, ...]:
    """Tile options; `keys` is the whole program's step, `stages` Triton's num_stages."""
    del rows
    keys = 64 if head_dim <= 128 else 32
    return (DecodeTile(4, keys, 3, 1), DecodeTile(4, keys // 2, 3, 1), DecodeTile(4, 16, 2, 1))


SPEC = KernelSpec(
    name="triton_decode",
    family="decode",
    language="triton",
    idea="One Triton source; tl.dot or fp32 products, chosen by a constexpr.",
    parent="reference",
    folder=Path(__file__).parent,
    min_arch=80,
    policies=(TENSOR_CORES, CUDA_CORES),
    rows=rows,
    tiles=tiles,
    runner="labkernels.kernels.triton_decode.run",
)
