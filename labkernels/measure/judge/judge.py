"""The interface of a judge, which compares outputs with float64 by the policy of their kernel."""

from typing import Any, Protocol

from labkernels.measure.judge.copies import CopyJudge
from labkernels.measure.judge.elements import Elements
from labkernels.measure.judge.gradients import GradientJudge
from labkernels.measure.judge.outputs import OutputJudge, ends_of_batch, every_row, some_tokens
from labkernels.policy import NumericPolicy


class Errors(Protocol):
    """The findings of a judge."""

    @property
    def passed(self) -> bool:
        """Whether every judged element kept its bound."""

    @property
    def reason(self) -> str:
        """The worst error relative to its bound, as text."""


class Judge(Protocol):
    """Judges outputs of one operation on given inputs; the truth is computed once for all."""

    def __call__(self, outputs: Any, policy: NumericPolicy, forward: Any = None) -> Any:
        """Judge outputs by the policy that they were computed under.

        forward: the output and lse2 to which gradients belong.
        """

    def elements(self, outputs: Any, policy: NumericPolicy, forward: Any = None) -> list[Elements]:
        """Every judged element with its error over its bound; an append has none."""


# OTHERS: operations whose outputs are not those of attention. SAMPLES: operations of which some
# rows are judged.
OTHERS = {"backward": GradientJudge, "append": CopyJudge}
SAMPLES = {"prefill": some_tokens, "mla": ends_of_batch}


def judge_of(operation: str, inputs, rows=None) -> Judge:
    """Return the judge of an operation's outputs on some inputs.

    rows: as for OutputJudge; by default all rows of a decode, and some of a prefill or MLA decode.
    """
    if operation in OTHERS:
        return OTHERS[operation](inputs)
    return OutputJudge(inputs, rows or SAMPLES.get(operation, every_row)(inputs))
