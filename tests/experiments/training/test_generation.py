"""A tiny model writes token by token as it reads a whole text, and its weights are shipped."""

import pytest
import torch

from labkernels.experiments.training import generation, losses, ways, weights

TEXTS = ("def read(self, size=", "return self._buffer[")
TOKENS = 6


@pytest.fixture(scope="module")
def model():
    return weights.load()


def test_the_shipped_model_has_nearly_the_loss_that_was_noted(model):
    """Of another version of Python the held-out text is another."""
    loaded, known = model
    loss = losses.judged(loaded, ways.WAYS["torch fp32"](), weights.SMALL, "cpu")
    assert abs(loss - float(known["held out"])) < 0.1


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
    layers = range(model[0].size.layers)
    for part in (slice(0, 5), slice(5, 6)):
        found = [cache.attend(q[:, part], k[:, part], v[:, part]) for _ in layers]
    want = ways.WAYS["torch fp32"]()(*(x.bfloat16().float() for x in (q, k, v)))[:, 5:]
    for layer in found:  # P and out have 8 bits
        assert (layer - want).abs().max() <= 2.0**-7 * v.abs().max()
