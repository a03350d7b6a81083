"""How a kernel rounds: what its bound and its expected error depend on besides the inputs."""

from dataclasses import dataclass

from labkernels import formats
from labkernels.numerics import tensor_core
from labkernels.numerics.choice import check_choice

P_FORMATS = ("fp32", "fp16", "bf16", "fp16x2", "bf16x2")  # x2: hi + lo
DENOMINATORS = ("unrounded", "rounded")
EXP2 = ("mufu", "poly3", "poly5")
SPLITS_ALLOWED = 256  # more than any plan uses, so that a bound holds for all of them


@dataclass(frozen=True)
class Rounds:
    """How a kernel rounds, as far as it is known.

    p_format: of the probabilities in the second product. denominator: the l that is the sum of the
    unrounded or of the rounded P; None: either, and the larger error counts. tensor_cores=True and
    many splits are right for a kernel with neither too: what they add to a bound is not needed.
    So is one long chain for a kernel whose tensor cores begin from zero every 16 keys; chains: how
    many sums of P v a row has, at least, that are joined at the end.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    p_format: str
    out_format: str
    denominator: str | None = None
    exp2: str = "mufu"
    tensor_cores: bool = True
    arch: str = "sm_90"
    splits: int = SPLITS_ALLOWED
    chains: int = 1

    def __post_init__(self):
        check_choice("p_format", self.p_format, P_FORMATS)
        check_choice("exp2", self.exp2, EXP2)
        if self.denominator is not None:
            check_choice("denominator", self.denominator, DENOMINATORS)
        with_bf16 = [arch for arch, units in tensor_core.UNITS.items() if "bf16" in units]
        check_choice("arch", self.arch, with_bf16)
        for name in ("splits", "chains"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}, allowed: 1 or more")
        formats.named(self.out_format)

    @property
    def p_parts(self) -> int:
        """How many numbers of 16 bits, or one of 32, stand for a probability."""
        return 2 if self.p_format.endswith("x2") else 1

    @property
    def denominators(self) -> tuple[str, ...]:
        """Those that the kernel may have, the one of larger bound last."""
        return (self.denominator,) if self.denominator else DENOMINATORS
