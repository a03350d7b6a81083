"""triton_decode: the same decode in Triton, tensor cores on or off by a constexpr."""

from pathlib import Path

from labkernels.kernels.spec import (
    CUDA_CORES,
    TENSOR_CORES,
    DecodeTile,
    KernelSpec,
    NumericPolicy,
)

MIN_ROWS = 16  # of tl.dot


def rows(group: int) -> int:
    """Query rows of a program."""
    return max(MIN_ROWS, 1 << (group - 1).bit_length())


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[DecodeTile, ...]:
    """Tile options; `keys` is the whole program's step, `stages` Triton's num_stages.

    Without tensor cores Triton keeps the fp32 operands of tl.dot in registers: more keys, fewer
    warps or (at 256 channels) more stages spill.
    """
    del rows
    if policy == CUDA_CORES:
        one_stage, staged = DecodeTile(8, 16, 1, 1), DecodeTile(8, 16, 2, 1)
        return (one_stage, staged) if head_dim <= 128 else (one_stage,)
    keys = 64 if head_dim <= 128 else 32
    return (DecodeTile(4, keys, 3, 1), DecodeTile(4, keys // 2, 3, 1), DecodeTile(4, 16, 2, 1))


SPEC = KernelSpec(
    name="triton_decode",
    family="decode",
    language="triton",
    idea="One Triton source; tl.dot on tensor cores or in fp32 FMAs, chosen by a constexpr.",
    parent="reference",
    folder=Path(__file__).parent,
    min_arch=80,
    policies=(TENSOR_CORES, CUDA_CORES),
    rows=rows,
    tiles=tiles,
    runner="labkernels.kernels.triton_decode.run",
)
