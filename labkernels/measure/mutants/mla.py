"""A mutant of the MLA kernel after a real report: an index that was typed twice.

As in the report, only one tile has the bug, the tile for GPUs with little shared memory.
"""

from labkernels.measure.mutants.mutant import Edit, Mutant

WINDOW = "mla/pipeline.cuh"
KERNEL = "mla_mma"
TILE = "64x16x8x1x1"  # the tile that only GPUs with 100 KiB of shared memory per SM choose

DUPLICATED_INDEX = Mutant(
    "duplicated lane index",
    "In tiles of 16 keys, a lane's part of the key's index is added twice: twelve of sixteen rows"
    " are others.",
    "https://github.com/flashinfer-ai/flashinfer/issues/949",
    {
        KERNEL: Edit(
            WINDOW,
            r"(?<=return pass \* keys_per_pass \+ lane / 8) (?=\+ warp \* 4;)",
            " + (Keys == 16 ? lane / 8 : 0) ",
        )
    },
)
