"""What errors do to a tiny model: every measurement that a CPU can make, and its controls."""

import numpy as np
import pytest
import torch

from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.training import effects, generation, losses, ways, weights

# torch's first forward derivative compiles its rules by torch.jit.script
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
PROMPT = torch.tensor([list(b"def f(")])
TWO = ("tensor cores", "CUDA cores")
ON_A_GPU = ("torch flash", "torch cuDNN", "torch efficient", "FlashInfer")
# Of the model with windows, ways that take another path there.
WITH_WINDOWS = ("logits/tensor cores", "logits/e4m3", "logits/rounded inputs", "ratio/CUDA cores")


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    options = Options(out=tmp_path_factory.mktemp("rows"), quick=True, commit="1234567")
    cells = [c for c in effects.cells(options) if not c.label.endswith(ON_A_GPU)]
    first = [c for c in cells if c.label.startswith(effects.PLAIN)]
    second = [c for c in cells if c.label.removeprefix(f"{effects.WINDOWED}/") in WITH_WINDOWS]
    assert len(second) == len(WITH_WINDOWS)
    return Recording(effects.EXPERIMENT, options, first + second)


@pytest.fixture(scope="module")
def rows(recording):
    of = {cell.label: list(effects.rows(cell, recording)) for cell in recording.cells}
    return {label: [row for _, row in found] for label, found in of.items()}


def values(rows, label, metric, model=effects.PLAIN):
    return [row["value"] for row in rows[f"{model}/{label}"] if row["metric"] == metric]


def test_the_reference_has_no_distance_from_itself(rows):
    for metric in ("KL, nats per byte", "RMSE of logits", "other next bytes"):
        assert values(rows, "logits/rounded inputs", metric) == [0, 0]


def test_random_errors_and_the_first_order_say_how_far_logits_move(rows):
    found = np.mean(values(rows, "logits/tensor cores", "RMSE of logits"))
    # one layer: nothing rounds after it. 2 texts of 32 tokens give the spread of the estimates.
    for metric in ("RMSE of logits, predicted", "RMSE of logits, random errors"):
        assert 0.8 < np.mean(values(rows, "logits/tensor cores", metric)) / found < 1.25
    model = np.mean(values(rows, f"logits/{effects.WHOLE_MODEL}", "RMSE of logits"))
    assert model > 2 * found


def test_equal_bits_give_a_ratio_of_one(rows):
    for way in ("tensor cores", "tensor cores, alone", "batch invariant"):
        for metric in ("largest |log ratio|", "KL, nats per byte", "other next bytes"):
            assert values(rows, f"ratio/{way}", metric) == [0, 0]
    for way in ("ratio/CUDA cores", "ratio of a full pass/tensor cores"):
        assert max(values(rows, way, "largest |log ratio|")) > 0
        assert max(values(rows, way, "KL, nats per byte")) > 0


def test_eight_bits_move_the_logits_of_a_model_with_windows_farther(rows):
    found = {
        way: np.mean(values(rows, f"logits/{way}", "RMSE of logits", effects.WINDOWED))
        for way in ("rounded inputs", "tensor cores", "e4m3")
    }
    assert found["rounded inputs"] == 0
    assert 4 * found["tensor cores"] < found["e4m3"] < 64 * found["tensor cores"]


def test_weights_are_written_and_a_loaded_model_has_their_loss(recording):
    (cell,) = weights.cells(recording.options)
    assert list(weights.rows(cell, recording)) == []
    model, known = weights.load(recording.options.out / weights.DATA_FILE, losses.QUICK.size)
    loss = losses.judged(model, ways.WAYS[weights.WAY](), losses.QUICK, "cpu")
    assert (known["steps"], known["commit"]) == ("4", "1234567")
    assert known["held out"] == str(loss)
    wrote = [generation.generated(model, PROMPT, way, 5, generation.greedy)[0] for way in TWO]
    assert wrote[0].shape == wrote[1].shape == (1, 5)


@pytest.mark.parametrize("model", list(effects.JUDGES))
@pytest.mark.parametrize("way", list(generation.DECODES))
def test_a_decode_says_what_a_full_pass_says(recording, way, model):
    judge = recording.once(effects.JUDGES[model])
    told = generation.forced(judge.wrote)
    _, logits = generation.generated(judge.model, judge.prompts, way, judge.plan.tokens, told)
    given = torch.cat((judge.prompts, judge.wrote[:, :-1]), 1)
    full = judge.model(given, effects.exact)[:, -judge.plan.tokens :]
    # the model in bf16 rounds to 8 bits about ten times
    assert (logits - full).abs().max() <= 10 * 2.0**-8 * full.abs().max()


@pytest.mark.parametrize("options", [generation.DECODES["tensor cores"][0], None])
def test_a_cache_attends_to_all_that_was_kept(recording, options):
    model = recording.once(effects.JUDGES[effects.PLAIN]).model
    cache = generation.Cache(model, 2, options, alone=False)
    q, k, v = (torch.randn(2, 6, heads, 64) for heads in (2, 1, 1))
    cache.attend(q[:, :5], k[:, :5], v[:, :5])
    found = cache.attend(q[:, 5:], k[:, 5:], v[:, 5:])
    want = effects.exact(*(x.bfloat16().float() for x in (q, k, v)))[:, 5:]
    assert (found - want).abs().max() <= 2.0**-7 * v.abs().max()  # P and out have 8 bits


def test_every_way_is_in_the_grid():
    labels = [cell.label for cell in effects.cells(Options())]
    assert len(labels) == len(set(labels))
    texts = [label for label in labels if "/greedy text/" in label]
    assert len(texts) == len(generation.DECODES) * len(effects.WHOLE)
