"""The verdict runs in other harnesses; stand-ins have the interfaces that those document."""

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest

from labkernels.audit import harnesses
from tests.measure.strangers import inputs, right

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


def stand_in(monkeypatch):
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
    names = ("q", "k", "v", "sm_scale")
    return SimpleNamespace(name="gqa_ragged", inputs=names), SimpleNamespace(atol=1e-9, rtol=1e-9)


def real(monkeypatch):
    data = pytest.importorskip("flashinfer_bench.data")
    config = pytest.importorskip("flashinfer_bench.bench.config")
    monkeypatch.setattr("torch.cuda.synchronize", lambda *_: None)
    sizes = zip("bhsdgl", (*CALL.q.shape, *CALL.k.shape[1:3]), strict=True)
    of = {word: data.TensorSpec(shape=list(word), dtype="bfloat16") for word in ("bhsd", "bgld")}
    given = {"q": of["bhsd"], "k": of["bgld"], "v": of["bgld"]}
    definition = data.Definition(
        name="gqa_ragged",
        op_type="gqa",
        axes={axis: data.AxisConst(value=size) for axis, size in sizes},
        inputs=given | {"sm_scale": data.TensorSpec(shape=None, dtype="float32")},
        outputs={"output": of["bhsd"]},
        reference="def run(q, k, v, sm_scale):\n    return q\n",
    )
    return definition, config.BenchmarkConfig()


@pytest.mark.parametrize("bench", [stand_in, real])
def test_an_evaluator_of_flashinfer_bench(bench, monkeypatch):
    definition, cfg = bench(monkeypatch)
    evaluator = harnesses.attention_evaluator()
    assert evaluator.can_evaluate(definition)
    assert not evaluator.can_evaluate(SimpleNamespace(name="gemm_n4096_k4096"))
    given, reference = (*GIVEN, CALL.scale), (right.exact(CALL)[0].bfloat16(),)

    class Solution:
        metadata = SimpleNamespace(destination_passing_style=False)
        factor = 1.0

        def __call__(self, q, k, v, sm_scale):
            return (model(q, k, v, sm_scale * self.factor),)

    solution = Solution()
    how = (definition, solution, [given], [reference], cfg, "log", "cpu")
    correctness, failed = evaluator.check_correctness(*how)
    assert failed is None
    solution.factor = 1.1
    correctness, failed = evaluator.check_correctness(*how)
    assert str(failed.status).endswith("INCORRECT_NUMERICAL")
    assert "scores: scale times" in correctness.extra["verdict"]
