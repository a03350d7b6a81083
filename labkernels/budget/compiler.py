"""Registers per thread that ptxas adds to a kernel's ledger: a few habits, fitted to its reports.

The lines of a ledger are what the algorithm keeps. The machine code keeps more at the point where
the most registers are live, in the main loop or in the merge of splits: addresses, and operands
that are loaded ahead of their products while registers are free. Each habit below is one number for
all kernels, tiles and architectures that have it; `tests/measure/register_fit.py` finds the
numbers in data/ and measures their errors on tiles and kernels that were not fitted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.quantity import Quantity, floor_div, least, number, quantity

AHEAD_MAX = 64  # operand registers in flight: 16 loads of ldmatrix.x4, in all listings we read
KEPT = {8: "kept, sm_8x", 9: "kept, sm_90", 10: "kept, sm_100 and newer"}
MERGE = "merge of splits"
# What a prediction says of spills.
FITS, EDGE, SPILLS = "fits", "at the edge", "spills"
SPARE = 2  # registers between the limit and a need that fits; with one, a pair was spilled


@dataclass(frozen=True)
class Habit:
    """Registers per thread for each unit of a feature, and what the machine code keeps in them.

    least: the part that every kernel kept, even under the tightest limit on registers.
    """

    registers: Fraction
    what: str
    least: int = 0


HABITS: Mapping[str, Habit] = {
    KEPT[8]: Habit(Fraction(18), "pointers, swizzled addresses, counters, alignment", 13),
    KEPT[9]: Habit(Fraction(24), "pointers, swizzled addresses, counters, alignment", 13),
    KEPT[10]: Habit(Fraction(34), "the same, with more addresses from before the loop", 13),
    "copies": Habit(Fraction(2, 5), "addresses of the 16-byte copies of a step"),
    "loaded ahead": Habit(Fraction(1, 2), "fragments that wait for their product", 9),
    "latent rows": Habit(Fraction(17), "Q is read again for each step, beside K"),
    "P and dS": Habit(Fraction(49), "addresses and fragments of four operands, P and dS", 18),
    "shuffles": Habit(Fraction(18), "partial sums on their way through the shuffles"),
    "fp32 operands": Habit(Fraction(74), "16-byte loads of Q, K, P and V before their FMAs"),
    "bf16 widened": Habit(Fraction(11, 4), "fp32 copies of a pair, before sm_100"),
    MERGE: Habit(Fraction(110), "partial results in flight; whatever the loop has is dead then"),
}


@dataclass(frozen=True)
class Asked:
    """The features of a kernel that the habits depend on: an amount for each habit that it has.

    merges_splits: whether the same kernel ends with the merge of splits.
    """

    features: Mapping[str, Quantity] = field(default_factory=dict)
    merges_splits: bool = False

    def all_features(self, arch: str) -> dict[str, Quantity]:
        """Return the features, with the habits of the compiler for an architecture added."""
        return {KEPT[generation(arch)]: number(1), **self.features}


@dataclass(frozen=True)
class Prediction:
    """The registers that ptxas gives a thread: what the kernel holds, what ptxas adds, the limit.

    ledger: the lines of both. least: what is held, and the least that is added. limit: what
    __launch_bounds__ and the hardware allow. merge: the need of the merge of splits, 0 if there is
    none. trades: whether warps hand registers to each other. Such a kernel is compiled for the
    limit, whatever it needs, and a thread that computes has `thread_limit` registers after the
    exchange.
    """

    ledger: Ledger
    least: int
    limit: int
    thread_limit: int
    merge: int = 0
    trades: bool = False

    @property
    def registers(self) -> int:
        """Registers per thread at launch."""
        return self.limit if self.trades else min(self.limit, max(self.ledger.total, self.merge))

    @property
    def answer(self) -> str:
        """FITS, EDGE or SPILLS: how the limit compares with the need and with the least need.

        FITS: all that is held and added fits, with SPARE registers more. EDGE: ptxas must give up
        some of what it adds, which it mostly can without a spill. SPILLS: the least fills the
        limit, and a few registers go to memory, on some architectures and not on others.
        """
        if self.ledger.total + SPARE <= self.thread_limit and self.merge <= self.thread_limit:
            return FITS
        return EDGE if self.least < self.thread_limit else SPILLS


def generation(arch: str) -> int:
    """Return the compiler's generation for an architecture: 8, 9, or 10 for every newer one."""
    return min(10, max(8, int(arch.removeprefix("sm_").removesuffix("a")) // 10))


def operands(registers: Quantity) -> Quantity:
    """Return registers of a tile's operands that a warp can have in flight within a step."""
    return least(registers, AHEAD_MAX)


def added_lines(asked: Asked, arch: str) -> tuple[Line, ...]:
    """Return a line for each habit, in registers.

    >>> [line.formula for line in added_lines(Asked({"copies": number(8, "copies")}), "sm_80")]
    ['18', 'floor(2 x 8 copies / 5)']
    """
    return tuple(
        Line(name, _times(HABITS[name].registers, amount), f"fitted: {HABITS[name].what}")
        for name, amount in asked.all_features(arch).items()
    )


def predict(
    held: Ledger, asked: Asked, *, arch: str, limit: int, thread_limit: int | None = None
) -> Prediction:
    """Return the registers of a kernel on an architecture, from its ledger.

    thread_limit: the registers of a thread that computes, after warps have traded registers; None
    if they do not trade.
    """
    lines = (*held.lines, *added_lines(asked, arch))
    least_added = sum(HABITS[name].least for name in asked.all_features(arch))
    return Prediction(
        ledger=Ledger(held.title, held.unit, lines),
        least=held.total + least_added,
        limit=limit,
        thread_limit=thread_limit or limit,
        merge=int(HABITS[MERGE].registers) if asked.merges_splits else 0,
        trades=thread_limit is not None,
    )


def _times(registers: Fraction, amount: Quantity) -> Quantity:
    if amount.value == 1 and not amount.names:
        return number(int(registers))
    if registers.denominator == 1:
        return registers.numerator * quantity(amount)
    several = amount if registers.numerator == 1 else registers.numerator * amount
    return floor_div(several, registers.denominator)
