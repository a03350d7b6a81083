"""A tiny model writes token by token as it reads a whole text, and its weights are shipped."""

import pytest
import torch

from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.training import generation, losses, ways, weights

TEXTS = ("def read(self, size=", "return self._buffer[")
TOKENS = 6


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    options = Options(out=tmp_path_factory.mktemp("rows"), quick=True, commit="1234567")
    return Recording(weights.EXPERIMENT, options, [])


@pytest.fixture(scope="module")
def model(recording):
    """Return the model whose weights are written, as it is loaded."""
    (cell,) = weights.cells(recording.options)
    assert list(weights.rows(cell, recording)) == []
    return weights.load(recording.options.out / weights.DATA_FILE, losses.QUICK.size)


def test_a_loaded_model_has_the_loss_that_was_noted(model):
    loaded, known = model
    loss = losses.judged(loaded, ways.WAYS[weights.WAY](), losses.QUICK, "cpu")
    assert (known["steps"], known["commit"]) == ("4", "1234567")
    assert known["held out"] == str(loss)


@pytest.mark.parametrize("way", list(generation.DECODES))
def test_a_decode_says_what_a_full_pass_says(model, way):
    prompts = torch.tensor([list(text.encode()) for text in TEXTS])
    wrote, logits = generation.generated(model[0], prompts, way, TOKENS, generation.drawn(0, "cpu"))
    given = torch.cat((prompts, wrote[:, :-1]), 1)
    full = model[0](given, ways.WAYS["torch fp32"]())[:, -TOKENS:]
    # the model in bf16 rounds to 8 bits about ten times
    assert (logits - full).abs().max() <= 10 * 2.0**-8 * full.abs().max()


@pytest.mark.parametrize("options", [generation.DECODES["tensor cores"][0], None])
def test_a_cache_attends_to_all_that_was_kept(model, options):
    cache = generation.Cache(model[0], 2, options, alone=False)
    q, k, v = (torch.randn(2, 6, heads, 64) for heads in (2, 1, 1))
    cache.attend(q[:, :5], k[:, :5], v[:, :5])
    found = cache.attend(q[:, 5:], k[:, 5:], v[:, 5:])
    want = ways.WAYS["torch fp32"]()(*(x.bfloat16().float() for x in (q, k, v)))[:, 5:]
    assert (found - want).abs().max() <= 2.0**-7 * v.abs().max()  # P and out have 8 bits
