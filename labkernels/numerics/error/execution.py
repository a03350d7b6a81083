"""Facts about a kernel's run that a bound may use, besides the places of its roundings."""

from dataclasses import dataclass

from labkernels.numerics.emulation import tensor_core
from labkernels.units import require_choice, require_int

# No plan chooses more splits. The largest number is the last that kernels/packed_gqa/schedule.py
# tries; a decode has at most two splits per SM of the GPU, 340 on the largest GPU in the table.
SPLITS_ALLOWED = 448

# The relative and the absolute error of tanh: by tanh.approx.f32, as the PTX ISA says, or from an
# exponential, as `capped` of lab/attention/variant.cuh makes it for the lab's kernels.
TANH_ERROR = {"approx": (2.0**-10.987, 0.0), "exp2": (0.0, 6.0e-7)}


@dataclass(frozen=True)
class Execution:
    """The units on which a kernel sums, and the number of parts; the defaults hold for every call.

    A bound holds for fewer splits, too, and for tensor cores that start from zero every 16 keys in
    place of one long chain; then it is larger than needed. chains: the least number of sums of P v
    per row that are joined at the end. tanh: how scores are capped, by a key of TANH_ERROR; None:
    not known, so the larger errors count.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    arch: str = "sm_90"
    splits: int = SPLITS_ALLOWED
    chains: int = 1
    tanh: str | None = None

    def __post_init__(self) -> None:
        with_bf16 = [arch for arch, units in tensor_core.UNITS.items() if "bf16" in units]
        require_choice("arch", self.arch, with_bf16)
        require_int("splits", self.splits, minimum=1)
        require_int("chains", self.chains, minimum=1)
        if self.tanh is not None:
            require_choice("tanh", self.tanh, TANH_ERROR)

    @property
    def tanh_error(self) -> tuple[float, float]:
        """The largest relative and absolute error of the tanh of a capped score."""
        known = TANH_ERROR.values() if self.tanh is None else [TANH_ERROR[self.tanh]]
        relative, absolute = zip(*known, strict=True)
        return max(relative), max(absolute)


ANY_EXECUTION = Execution()
