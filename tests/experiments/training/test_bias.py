"""Equal logits provoke a bias of rounded weights, which is predicted to the last digit."""

import pytest
import torch

from labkernels.experiments.experiment import Options
from labkernels.experiments.training import bias, ways
from labkernels.policy import CUDA_CORES, TENSOR_CORES

ROUNDED = bias.POLICIES["rounded denominator"]


@pytest.mark.parametrize("texts", [bias.EQUAL, bias.SPREAD])
def test_a_training_is_examined_and_the_prediction_holds(texts):
    case = bias.Case("tensor cores", texts, 0)
    found = {(step, m): value for step, m, value in bias.trained(case, bias.QUICK, "cpu")}
    steps = {step for step, _ in found}
    assert len(steps) == 4  # every second of 4 steps, the last one, and the end
    for step, metric in [key for key in found if key[1].startswith("bias")]:
        want = found[step, f"{metric.removesuffix(', predicted')}, predicted"]
        # a last bit of fp32 turns a rounding of P or of the output, of 32,768 numbers
        assert abs(found[step, metric] - want) <= 2.0**-9 * 1e-2
    share = [value for (_, metric), value in found.items() if metric.startswith("share")]
    assert (min(share) > 0.3) == (texts == bias.EQUAL)


def test_one_rounding_error_of_a_weight_is_the_bias():
    scores = torch.zeros(1, 1, 1, 65, dtype=torch.float64)
    scores[..., 0] = torch.log2(torch.tensor(1.4)) * torch.log(torch.tensor(2.0))  # p is 1 / 1.4
    values = torch.ones(1, 1, 65, 8, dtype=torch.float64)
    p = torch.tensor(1 / 1.4)
    error = float(p.bfloat16() / p.double() - 1) * float(64 * p / (1 + 64 * p))
    for policy, want in ((TENSOR_CORES, error), (ROUNDED, 0), (CUDA_CORES, 0)):
        found = bias.attention(scores, values, policy) - 1
        assert torch.allclose(found, torch.full_like(found, want), rtol=0, atol=1e-6)
    assert abs(error) > 5e-4


def test_the_grid_has_every_way_and_the_control():
    cases = [cell.of for cell in bias.cells(Options())]
    assert {case.way for case in cases} == set(bias.POLICIES) <= set(ways.WAYS)
    assert {case.texts for case in cases} == {bias.EQUAL, bias.SPREAD}
