"""The verdict in place of a tolerance, for the test harnesses of other projects.

FlashInfer-Bench: register attention_evaluator() before a run, as its own evaluators are,
`registry._EVALUATORS.append(attention_evaluator())`. KernelBench and similar harnesses, which
pass a model and its inputs to a check: `correct, metadata = check_model(model_new, inputs)`.
"""

import copy
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from labkernels.audit.dumps import judge, whole
from labkernels.audit.names import Take
from labkernels.numerics.verdict.verdict import INCONCLUSIVE, ROUNDING, Verdict

_ATTENTION = ("gqa_", "mla_paged", "mha_")
_ANY = 1e30  # this tolerance accepts every finite output, since the verdict decides


def judged(inputs: Mapping[str, Any], outputs: Sequence, **how) -> Verdict:
    """Return the verdict on outputs (out and perhaps lse2) and inputs, by the names of any library.

    Raises: ValueError naming the tensor that is missing or malformed.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    take = Take()
    tensors = {ours: given[theirs] for theirs, ours in take.chosen(given).items()}
    named = dict(zip(("out", "lse2"), outputs, strict=False))
    return whole(judge(tensors | named, **how), take, "inputs")


def passes(found: Verdict) -> bool:
    """Return whether a harness should accept: an odd result on finite inputs is not a failure."""
    return found.answer == ROUNDING or (found.answer == INCONCLUSIVE and bool(found.findings))


def check_model(
    model, inputs: Sequence, *, names: Sequence[str] = ("q", "k", "v"), **how
) -> tuple[bool, dict[str, str]]:
    """Run a model on inputs and judge its output: whether it is right, and why.

    names: the names of the inputs, in order; how: causal, scale and other names of names.NAMES.
    """
    given = dict(zip(names, inputs, strict=False)) | how
    outputs = model(*inputs)
    found = judged(given, outputs if isinstance(outputs, tuple) else (outputs,))
    return passes(found), {"verdict": found.answer, "why": found.summary(verbose=False)}


def attention_evaluator() -> type:
    """Return an evaluator of FlashInfer-Bench for attention, which refuses by the verdict.

    Source: flashinfer_bench/bench/evaluators/{default,lowbit,registry}.py of FlashInfer-Bench.
    Raises: ModuleNotFoundError where FlashInfer-Bench is not installed.
    """
    default: Any = importlib.import_module("flashinfer_bench.bench.evaluators.default")
    utils = importlib.import_module("flashinfer_bench.bench.utils")
    data = importlib.import_module("flashinfer_bench.data")

    class AttentionEvaluator(default.DefaultEvaluator):
        """Judges attention by the verdict; checks shapes and types like the default evaluator."""

        @classmethod
        def can_evaluate(cls, definition) -> bool:
            return definition.name.startswith(_ATTENTION)

        @classmethod
        def check_correctness(
            cls, definition, sol_runnable, inputs, ref_outputs, cfg, log_path, device
        ):
            kept = _Kept(sol_runnable)
            wide = copy.copy(cfg)
            wide.atol = wide.rtol = _ANY
            correctness, failed = super().check_correctness(
                definition, kept, inputs, ref_outputs, wide, log_path, device
            )
            if failed is not None:
                return correctness, failed
            more = {"causal": "causal" in definition.name}
            for given, outputs in zip(inputs, kept.outputs, strict=True):
                found = judged(dict(zip(definition.inputs, given, strict=True)) | more, outputs)
                if not passes(found):
                    correctness.extra = {"verdict": found.summary(verbose=False)}
                    status = data.EvaluationStatus.INCORRECT_NUMERICAL
                    how = {"device": device, "log_path": log_path, "correctness": correctness}
                    return correctness, utils.make_eval(status=status, **how)
            return correctness, None

    return AttentionEvaluator


class _Kept:
    """A solution that remembers its outputs, also if it writes them into given tensors."""

    def __init__(self, runnable) -> None:
        self.runnable, self.metadata, self.outputs = runnable, runnable.metadata, []

    def __call__(self, *arguments):
        result = self.runnable(*arguments)
        if self.metadata.destination_passing_style:
            n = 2 if len(arguments) > 1 and arguments[-1].ndim < arguments[-2].ndim else 1
            self.outputs.append(arguments[-n:])
        elif isinstance(result, dict):
            self.outputs.append(tuple(result.values()))
        else:
            self.outputs.append(result if isinstance(result, tuple | list) else (result,))
        return result
