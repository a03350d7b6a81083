"""The language model of a page writes what Python writes with the same kernels on the CPU."""

import json
from pathlib import Path

import node
import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from labkernels.experiments.training import generation, weights
from labkernels.widgets import writing

SCRIPT = Path(__file__).parent / "scripts" / "written_of_prompts.mjs"
PROMPT = list(writing.PROMPT.encode())
SEED, FIRST = 0, 32


class SumsInFloat64(TorchFunctionMode):
    """Autocast in bf16 whose products, norms and turns are computed in float64, then rounded."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is functional.linear:
            x, weight = (part.bfloat16().double() for part in args[:2])
            return (x @ weight.mT).bfloat16()
        if function is functional.rms_norm:
            eps, weight = torch.finfo(torch.float32).eps, kwargs["weight"].double()
            return function(args[0].double(), args[1], weight, eps)
        if function is functional.silu:
            return function(args[0].double()).bfloat16()
        if function is torch.view_as_complex:
            return function(args[0].double())
        return function(*args, **kwargs)


def wrote(way, n, seed):
    """Return what Python writes, reading the prompt byte by byte, as the page does."""
    model, _ = weights.load()
    draws = (np.random.PCG64(seed).random_raw(n) >> np.uint64(11)) * 2.0**-53

    def choose(logits, place):
        at = place + 1 - len(PROMPT)
        if at < 0:
            return torch.tensor(PROMPT[place + 1 : place + 2])
        shares = logits[0].double().softmax(-1).cumsum(-1)
        return torch.searchsorted(shares, torch.tensor([draws[at]]), right=True)

    steps = len(PROMPT) - 1 + n
    said, _ = generation.generated(model, torch.tensor([PROMPT[:1]]), way, steps, choose)
    return said[0, -n:].tolist()


@pytest.fixture(scope="module")
def asset(needs_node, needs_zig):
    return writing.data()


@pytest.fixture(scope="module")
def page(asset):
    cases = [{"prompt": PROMPT, "seed": seed} for seed in (SEED, None)]
    return node.run(SCRIPT, given={"asset": asset, "cases": cases})


@pytest.mark.parametrize("name", writing.WAYS)
def test_page_writes_what_python_writes(page, name):
    drawn = page[0][name]
    assert wrote(writing.WAYS[name], FIRST, SEED) == drawn[:FIRST]
    with SumsInFloat64():
        assert wrote(writing.WAYS[name], len(drawn), SEED) == drawn


def test_texts_part_and_the_context_is_filled(page):
    drawn, likely = page
    assert len(drawn["on"]) == len(drawn["off"]) == weights.SMALL.size.context - len(PROMPT)
    assert drawn["on"] != drawn["off"]
    assert likely["on"] == likely["off"]


def test_page_says_how_much_it_loads(asset):
    assert abs(len(json.dumps(asset)) / 1e6 - writing.MB) <= 0.05
