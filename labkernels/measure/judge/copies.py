"""The judge of an append: rows in the pools must equal the new rows in every bit."""

from dataclasses import dataclass

from labkernels.kernels.append.inputs import AppendInputs
from labkernels.policy import NumericPolicy


@dataclass(frozen=True)
class CopyErrors:
    """Whether the pools hold the right rows."""

    passed: bool

    @property
    def reason(self) -> str:
        """What is wrong, in words."""
        return "" if self.passed else "the pools do not hold the new rows, or hold something else"


class CopyJudge:
    """Judges the pools of an append's inputs; nothing is rounded, so the policy is ignored."""

    def __init__(self, inputs: AppendInputs) -> None:
        self._inputs = inputs

    def __call__(self, outputs, policy: NumericPolicy | None = None, forward=None) -> CopyErrors:
        """Return whether the pools hold the new rows, bit for bit, and NaN everywhere else."""
        return CopyErrors(self._inputs.holds_the_rows())

    def elements(self, outputs, policy: NumericPolicy, forward=None) -> list:
        """Return an empty list, because copies have no rounding errors."""
        return []
