"""Rows that the formula of registers misses by more than the band, each with its cause.

The machine code was read by `cuda.compiler.live_ranges`, where the most registers are alive. Before
a kernel runs out of registers ptxas decides alone how much it loads ahead, and a formula with one
number for all kernels misses where it decides otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BAND = 0.12  # relative error up to which a prediction is near
NEWEST = ("sm_100a", "sm_120")


@dataclass(frozen=True)
class Cause:
    """Why the formula misses rows of a kernel and tile on some GPUs, as machine code shows."""

    kernel: str
    tiles: tuple[str, ...]
    archs: tuple[str, ...]
    words: str

    def explains(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of the reports is one of them."""
        return (
            row["kernel"] == self.kernel and row["tile"] in self.tiles and row["arch"] in self.archs
        )


CAUSES = (
    Cause(
        "decode_mma_n8",
        ("4x16x2x3", "4x16x3x2", "4x16x2x2", "2x16x3x2"),
        NEWEST,
        "Addresses of a step's fragments are computed before the loop and stay alive: at head_dim"
        " 256, 78 registers of addresses and scalars, where sm_90a has 37.",
    ),
    Cause(
        "decode_mma",
        ("4x32x2x1",),
        NEWEST,
        "89 registers of addresses and scalars are alive, and 80 of fragments, where sm_90a has 74"
        " and 64.",
    ),
    Cause(
        "decode_fma",
        ("4x16x2x3", "2x16x3x2"),
        ("sm_86", "sm_89", *NEWEST),
        "Another number of fp32 copies of K and V waits for its FMAs, up to the limit of 168 where"
        " there is one: of 4x16x2x3 for 2 rows, 116 registers on sm_120 and 93 on sm_90a.",
    ),
    Cause(
        "decode_fma",
        ("4x16x3x3",),
        ("sm_80",),
        "Widened bf16 takes 2.5 registers per row here; one number serves the other tiles better.",
    ),
    Cause(
        "prefill_fma",
        ("16x32x4x1x2",),
        NEWEST,
        "At head_dim 192 loads of 62 registers are on their way, where head_dim 128 has 89.",
    ),
    Cause(
        "prefill_mma",
        ("64x64x4x2x3", "64x64x4x2x3-backward", "16x64x4x1x2-backward"),
        ("sm_120",),
        "Fewer fragments wait for their product: 40 or 16 registers, where sm_100a has 60 for the"
        " first tile.",
    ),
    Cause(
        "mla_mma",
        ("64x16x8x1x1",),
        ("sm_90a",),
        "32 registers of fragments wait for their product, where steps of 64 keys have 60.",
    ),
)


def cause(row: Mapping[str, Any]) -> str | None:
    """The cause as text, or None if none is known."""
    return next((each.words for each in CAUSES if each.explains(row)), None)
