"""The verdict runs in other harnesses; stand-ins have the interfaces that those document."""

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest

from labkernels.audit import harnesses
from labkernels.measure.strangers import inputs, right

CALL = inputs.call("normal", inputs.Shape(2, 4, 2, 1, 64, 32), "bf16", 1)
FLASH = right.RIGHT["flash, blocks of 64"]
GIVEN = (CALL.q, CALL.k, CALL.v)


def model(q, k, v, scale=CALL.scale):
    return FLASH(inputs.Call(q, k, v, False, scale))


def test_a_model_is_right_or_wrong_and_says_why():
    assert harnesses.check_model(model, GIVEN)[0]
    correct, metadata = harnesses.check_model(lambda *x: model(*x, scale=0.1), GIVEN)
    assert not correct
    assert metadata["verdict"] == "BUG"
    assert "scores: scale times" in metadata["why"]


@dataclass
class Correctness:
    """Stand in for flashinfer_bench.data.Correctness."""

    max_absolute_error: float = 0.0
    extra: dict = field(default_factory=dict)


class DefaultEvaluator:
    """Stand in for the DefaultEvaluator of flashinfer_bench, in value-returning style."""

    @classmethod
    def check_correctness(cls, definition, sol_runnable, inputs, ref, cfg, log_path, device):
        off = max(
            float((sol_runnable(*x)[0] - y[0]).abs().max())
            for x, y in zip(inputs, ref, strict=True)
        )
        return Correctness(off), None if off <= cfg.atol else "refused"


@pytest.fixture
def bench(monkeypatch):
    modules = {
        "flashinfer_bench": {},
        "flashinfer_bench.bench": {},
        "flashinfer_bench.bench.evaluators": {},
        "flashinfer_bench.bench.evaluators.default": {"DefaultEvaluator": DefaultEvaluator},
        "flashinfer_bench.bench.utils": {"make_eval": lambda **how: SimpleNamespace(**how)},
        "flashinfer_bench.data": {
            "EvaluationStatus": SimpleNamespace(INCORRECT_NUMERICAL="INCORRECT_NUMERICAL")
        },
    }
    for name, members in modules.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return harnesses.attention_evaluator()


def test_an_evaluator_of_flashinfer_bench(bench):
    definition = SimpleNamespace(name="gqa_ragged", inputs=("q", "k", "v", "sm_scale"))
    assert bench.can_evaluate(definition)
    assert not bench.can_evaluate(SimpleNamespace(name="gemm_n4096_k4096"))
    cfg = SimpleNamespace(atol=1e-9)
    cfg.model_copy = lambda update: SimpleNamespace(**update)
    given, reference = (*GIVEN, CALL.scale), (right.exact(CALL)[0],)

    class Solution:
        metadata = SimpleNamespace(destination_passing_style=False)
        factor = 1.0

        def __call__(self, q, k, v, sm_scale):
            return (model(q, k, v, sm_scale * self.factor),)

    solution = Solution()
    how = (definition, solution, [given], [reference], cfg, "log", "cpu")
    correctness, failed = bench.check_correctness(*how)
    assert failed is None
    solution.factor = 1.1
    correctness, failed = bench.check_correctness(*how)
    assert failed.status == "INCORRECT_NUMERICAL"
    assert "scores: scale times" in correctness.extra["verdict"]
