"""Why the formula of registers misses some rows by more than BAND, or answers wrongly about spills.

`nvdisasm -plr` lists which registers are live at each instruction; the causes were read where the
most are live. While registers are free, ptxas chooses how much it loads ahead. A formula with one
number for all kernels misses where ptxas chooses another amount. The causes of spills were read at
the instructions STL and LDL, which store a word in local memory and load it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkernels.budget.compiler import EDGE, SPILLS

BAND = 0.12  # relative error up to which a prediction is near
NEWEST = ("sm_100a", "sm_120")


@dataclass(frozen=True)
class Cause:
    """Why the formula misses rows of a kernel and tile on some GPUs, as the machine code shows."""

    kernel: str
    tiles: tuple[str, ...]
    archs: tuple[str, ...]
    words: str

    def explains(self, row: Mapping[str, Any]) -> bool:
        """Whether this cause is that of a row of the reports."""
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
        "ptxas holds another number of fp32 copies of K and V before their FMAs, up to the limit of"
        " 168 where there is one: 4x16x2x3 for 2 rows has 116 on sm_120 and 93 on sm_90a.",
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
)


@dataclass(frozen=True)
class SpillCause:
    """Why rows of a kernel and tile spill, or do not, contrary to the predicted answer."""

    answer: str
    kernel: str
    tiles: tuple[str, ...]
    head_dims: tuple[int, ...]
    words: str

    def explains(self, row: Mapping[str, Any], answer: str) -> bool:
        """Whether this cause is that of a wrong answer for a row of the reports."""
        return (
            (answer, row["kernel"]) == (self.answer, self.kernel)
            and row["tile"] in self.tiles
            and row["head_dim"] in self.head_dims
        )


_MOVED = (
    "The same values are alive on all architectures. Where one spills, it stores a few words before"
    " the loop and reads each once per step; the others found an order that needs none."
)
SPILL_CAUSES = (
    SpillCause(
        EDGE,
        "prefill_mma",
        ("128x32x4x2x2-backward",),
        (192,),
        "One or two words are stored before the loop, and read once per step or after it.",
    ),
    SpillCause(
        EDGE,
        "prefill_mma",
        (
            "128x64x4x2x2-backward",
            "64x128x4x1x2",
            "64x128x4x1x2-backward",
            "128x128x8x1x1-backward",
        ),
        (64, 128),
        "Two to four words are stored before the loop and read after it; no step reads them.",
    ),
    SpillCause(
        EDGE,
        "backward_mma",
        ("64x64x8x2x1",),
        (256,),
        "What is made before the loop is stored there, and read once per step.",
    ),
    SpillCause(
        SPILLS,
        "backward_mma",
        ("128x128x8x2x1", "128x128x8x2x1-ordered"),
        (64,),
        "The least is one number for all backward tiles. It is that of head_dim 128; with 64"
        " channels ptxas keeps fewer.",
    ),
    SpillCause(
        SPILLS,
        "backward_mma",
        ("64x128x8x2x1", "64x128x8x2x1-ordered", "64x64x4x2x2", "64x64x4x2x2-ordered"),
        (128,),
        _MOVED,
    ),
    SpillCause(SPILLS, "prefill_mma", ("128x64x4x2x2-backward",), (128,), _MOVED),
)


def cause(row: Mapping[str, Any]) -> str | None:
    """Return the cause of a row's miss as text, or None if none is known."""
    return next((each.words for each in CAUSES if each.explains(row)), None)


def spill_cause(row: Mapping[str, Any], answer: str) -> str | None:
    """Return the cause of a wrong answer about spills as text, or None if none is known."""
    return next((each.words for each in SPILL_CAUSES if each.explains(row, answer)), None)
