"""A mutant of the MLA kernel after a real report: an index that was typed twice.

As in the report, only one tile has the bug, the tile for GPUs with little shared memory.
"""

from labkernels.measure.mutants.mutant import read

KERNEL = "mla_mma"
TILE = "64x16x8x1x1"  # the tile that only GPUs with 100 KiB of shared memory per SM choose
DUPLICATED_INDEX = read("mla")["duplicated lane index"]
