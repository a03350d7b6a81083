"""The numeric policy of a kernel: where it may round."""

from dataclasses import dataclass, fields, replace

from labkernels.formats import FORMATS
from labkernels.units import require_choice

EXP2 = ("mufu", "poly3", "poly5")  # "library": the exponential function that torch calls
DENOMINATORS = ("unrounded", "rounded")
SIXTEEN_BITS = ("fp16", "bf16")
P_FORMATS = ("fp32", "fp16", "bf16", "fp16x2", "bf16x2", "e4m3")  # x2: hi + lo


@dataclass(frozen=True)
class NumericPolicy:
    """Where a kernel rounds; each field is a compile-time switch of the lab's kernels.

    p: format of the probabilities in the second product; "input": the format of Q, K and V;
    "input_x2": hi + lo, both in that format (bf16x2 or fp16x2), because an mma takes P and V in one
    format. denominator: whether l sums P before or after its rounding; None: not known, so the
    larger error of the two counts. exp2: the special-function unit, a polynomial of degree 3 or 5
    in FMAs, or torch's own. accumulate: what sums the products; "promoted": tensor cores start from
    zero for every 16 keys, or 128 in products of 8 bits, and fp32 additions to nearest join the
    sums. Policies of other libraries name the formats of p and out.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    p: str = "input"
    denominator: str | None = "unrounded"
    exp2: str = "mufu"
    accumulate: str = "tensor_core"
    out: str = "input"

    def __post_init__(self) -> None:
        require_choice("p", self.p, ("input", "input_x2", "fp64", *P_FORMATS))
        if self.denominator is not None:
            require_choice("denominator", self.denominator, DENOMINATORS)
        require_choice("exp2", self.exp2, (*EXP2, "library"))
        require_choice("accumulate", self.accumulate, ("tensor_core", "promoted", "fma", "fp64"))
        require_choice("out", self.out, ("input", *FORMATS))

    @property
    def label(self) -> str:
        """The policy in one word per switch, as in data/: "p=input,denominator=unrounded,..."."""
        return ",".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    @property
    def tensor_cores(self) -> bool:
        """Whether the products run on tensor cores."""
        return self.accumulate in ("tensor_core", "promoted")

    @property
    def narrow(self) -> bool:
        """Whether P and the output have 16 bits: fp32 is enough to estimate their errors."""
        return self.p in SIXTEEN_BITS and self.out in SIXTEEN_BITS

    @property
    def p_parts(self) -> int:
        """How many numbers (one or two of 16 bits, or one of 32) represent a probability."""
        return 2 if self.p.endswith("x2") else 1

    @property
    def denominators(self) -> tuple[str, ...]:
        """The denominators that the kernel may have, the one with the larger bound last."""
        return (self.denominator,) if self.denominator else DENOMINATORS

    def p_format(self, dtype: str) -> str:
        """Return the format of P for inputs of a dtype, as numerics names it."""
        return {"input": dtype, "input_x2": f"{dtype}x2"}.get(self.p, self.p)

    def out_format(self, dtype: str) -> str:
        """Return the format of the output for inputs of a dtype."""
        return dtype if self.out == "input" else self.out

    def of(self, dtype: str) -> "NumericPolicy":
        """Return the policy for inputs of a dtype, as numerics takes it: formats by their names.

        A format that is more exact than the error models know counts as the nearest less exact one:
        P in fp64 counts as fp32, and torch's own exp2 as the special-function unit.
        """
        return replace(
            self,
            p=self.p_format(dtype).replace("fp64", "fp32"),
            exp2=self.exp2.replace("library", "mufu"),
            out=self.out_format(dtype),
        )


TENSOR_CORES = NumericPolicy()
CUDA_CORES = NumericPolicy(p="fp32", accumulate="fma")
FLOAT64 = NumericPolicy(p="fp64", exp2="library", accumulate="fp64", out="fp64")
EAGER = NumericPolicy(exp2="library")  # torch's own: each operation rounds its result to 16 bits


def policies(
    base: NumericPolicy, *, denominators: tuple[str, ...], exp2s: tuple[str, ...] = EXP2
) -> tuple[NumericPolicy, ...]:
    """Return every policy with p and accumulate of `base` and any out, exp2 and denominator."""
    return tuple(
        NumericPolicy(base.p, denominator, exp2, base.accumulate, out)
        for out in ("input", "fp32")
        for exp2 in exp2s
        for denominator in denominators
    )


def tensor_core_policies() -> tuple[NumericPolicy, ...]:
    """Return every way to round on tensor cores; costly P and sums only with the SFU's exp2."""
    costly = (("input_x2", "tensor_core"), ("input", "promoted"), ("input_x2", "promoted"))
    usual = policies(TENSOR_CORES, denominators=DENOMINATORS)
    return usual + tuple(
        policy
        for p, accumulate in costly
        for policy in policies(
            NumericPolicy(p=p, accumulate=accumulate), denominators=DENOMINATORS, exp2s=("mufu",)
        )
    )
