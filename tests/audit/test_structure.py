"""General fits locate and describe mistakes that are in no list of mistakes."""

import numpy as np
import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.measure.strangers.wrong import keys_read, masked, scored, stored, valued
from labkernels.numerics.verdict.diagnosis import words
from labkernels.numerics.verdict.diagnosis.structure import linear
from labkernels.numerics.verdict.diagnosis.whole_kernel.search import LEFT

DECODE = inputs.SHAPES[5]  # 64 keys
TURNED = torch.tensor([3, 0, 7, 2, 5, 1, 6, 4])


def _within_8(x):
    return x[:, :, torch.arange(x.shape[2]) // 8 * 8 + TURNED[torch.arange(x.shape[2]) % 8]]


def _mixed(w, out):
    own = 0.2 + 0.1 * torch.arange(out.shape[1])[:, None, None]
    return (out.double() + own * out.double().roll(1, 1)).to(out.dtype)


def _some_pages(w, there, here):
    return torch.where((wrong.keys_of(w) // 8 % 3 == 1)[:, None], there, here)


def _in_bytes(out):
    step = out.double().abs().amax(-1, keepdim=True) / 127
    return (torch.round(out.double() / step) * step).to(out.dtype)


def _longer(x, more: int = 2):
    n, d = x.shape[-2:]
    flat = torch.cat([x.flatten(-2), x.new_zeros(*x.shape[:-2], n * more)], -1)
    return flat[..., torch.arange(n)[:, None] * (d + more) + torch.arange(d)]


BUGS = {
    "some keys lost": (
        scored(lambda w: masked(w.s, torch.isin(wrong.keys_of(w), torch.tensor([3, 17, 40])))),
        "keys left out",
        "keys 3, 17, 40",
    ),
    "keys turned within 8": (
        valued(lambda w: _within_8(w.v)),
        "V read in another order",
        "within each 8 keys",
    ),
    "zeros here and there": (
        lambda w: wrong.attend(
            w.scores(k=w.k * (wrong.keys_of(w) // 8 % 3 != 1)[:, None]),
            w.v * (wrong.keys_of(w) // 8 % 3 != 1)[:, None],
            w.call.q.dtype,
        ),
        "K and V read as 0",
        "keys 8 to 15",
    ),
    "best keys alone": (
        scored(lambda w: masked(w.s, w.s < w.s.topk(20, -1).values[..., -1:])),
        "small weights dropped, in each row below a number of its own",
        "all rows",
    ),
    "gated scores": (
        scored(lambda w: w.s - torch.nn.functional.softplus(0.7 * w.s)),
        "weights are another function of the score",
        "plus",
    ),
    "others added": (stored(_mixed), "the output of head -1 is added", "times 0.2 to 0.9"),
    "V of the next head in some pages": (
        valued(lambda w: _some_pages(w, w.v.roll(-1, 1), w.v)),
        "V of another head",
        "keys 8 to 15",
    ),
    "K for V in some pages": (
        lambda w: wrong.attend(
            w.scores(k=_some_pages(w, w.v, w.k)), _some_pages(w, w.k, w.v), w.call.q.dtype
        ),
        "K and V exchanged",
        "keys 8 to 15",
    ),
    "two factors": (
        lambda w: (wrong.attend(w.s * 1.7, w.v, w.call.q.dtype).double() * 0.6).bfloat16(),
        "wrong scale, and the output by a factor",
        "scores times 1.7, the output times 0.6",
    ),
    "a scale of each row": (
        scored(lambda w: w.s * torch.linspace(0.5, 1.5, 24).reshape(3, 8, 1, 1)),
        "wrong scale, another for each row",
        "all rows",
    ),
    "scores of two slopes": (
        scored(lambda w: torch.where(w.s < 0, 0.4 * w.s, w.s)),
        "weights are another function of the score: two scales",
        "below 0, times 1 above",
    ),
    "means of pairs": (
        valued(lambda w: w.v.unflatten(2, (-1, 4)).mean(3).repeat_interleave(4, 2)),
        "V is a mean of several keys'",
        "of each 4 keys",
    ),
    "output in bytes": (
        stored(lambda w, out: _in_bytes(out)),
        "out was rounded to steps, as int8",
        "255 steps for each row",
    ),
    "rows too long": (
        lambda w: wrong.attend(w.scores(k=_longer(w.k)), _longer(w.v), w.call.q.dtype),
        "K and V read by another stride",
        "rows of +2 elements",
    ),
    "keys read here and there": (
        keys_read(lambda w: torch.where(wrong.keys_of(w) % 11 == 5, 2, wrong.keys_of(w))),
        "keys read",
        "",
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("bug", BUGS)
def test_what_nobody_listed_is_described(bug):
    make, name, where = BUGS[bug]
    call = inputs.call("normal", DECODE, "bf16", 31)
    best = runs.judged(call, wrong.run(make, call)).matches[0]
    assert best.name.startswith(name), best
    assert where in best.where, best
    assert best.rms <= LEFT < best.was


def test_noise_has_no_structure():
    call = inputs.call("normal", DECODE, "bf16", 31)

    def noisy(w, out):
        noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        return (out.double() * (1 + 0.05 * noise)).to(out.dtype)

    found = runs.judged(call, wrong.run(stored(noisy), call))
    assert (found.answer, found.matches) == ("BUG", ())


def test_a_fit_refuses_more_numbers_than_half_of_its_equations():
    rng = np.random.default_rng(0)
    out, sigma = rng.standard_normal((2, 8)), np.ones((2, 8))
    for n, known in ((8, True), (9, False)):
        terms = [linear.Terms(rng.standard_normal((2, n, 8)), None, out, sigma)]
        assert (linear.fitted(terms, n, 1.0) is not None) == known


def test_sets_of_numbers_in_words():
    told = words.of("key", 64)
    assert told(np.arange(16, 32)) == "keys 16 to 31"
    assert told(np.arange(3, 64, 7)) == "every key with key % 7 in 3"
    assert told(np.array([1, 5, 6, 20, 40, 63])) == "keys 1, 5 to 6, 20, 40 and 1 runs more"
