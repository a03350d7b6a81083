"""The verdict judges code that is not ours: right outputs, coarser ones, and wrong ones."""

import pytest
import torch

from labkernels import testing, verdict
from tests.measure.strangers import inputs, right, runs, wrong


def test_an_output_rounded_once_is_rounding_and_says_so():
    call = inputs.call("v of mean 100", inputs.SHAPES[1], "bf16", 1)
    found = runs.judged(call, right.rounded_once(call))
    assert (found.answer, len(found.findings)) == ("ROUNDING", 1)
    assert "rounded once" in found.why


def test_a_test_that_right_kernels_fail_says_that_it_was_held_against_them():
    call = inputs.call("k zero", inputs.SHAPES[2], "fp16", 2)
    out = wrong.run(wrong.valued(lambda w: w.v.roll(w.call.group, 1)), call)
    halfway = right.RIGHT["eager, P normalised"](call)
    assert runs.judged(call, out).answer == "BUG"
    found = runs.judged(call, halfway)
    assert found.answer == "ROUNDING", found.summary()
    assert any(test.widened for test in found.findings)
    assert "right kernels fail them on these inputs" in found.summary(verbose=False)


def _normalised_key_by_key(call):
    q, k, v = right.grouped(call, torch.float32)
    s = (q @ k.mT * call.scale).masked_fill(right.hidden_of(call), -torch.inf)
    lse, o = s[..., :1], v[:, :, :1]
    for j in range(1, s.shape[-1]):
        new = torch.logaddexp(lse, s[..., j : j + 1])
        o = torch.exp(lse - new) * o + torch.exp(s[..., j : j + 1] - new) * v[:, :, j : j + 1]
        lse = new
    return o


@pytest.mark.parametrize(
    ("family", "run", "words"),
    [
        ("v of mean 1", _normalised_key_by_key, "normalised at every step"),
        ("v of mean 1", right.Flash(tf32=True), "cut to tf32"),
        ("one spike", right.RIGHT["flash, cubic exp2"], ""),
    ],
    ids=["normalised", "tf32", "cubic"],
)
def test_honest_arithmetic_that_rounds_more_is_less_exact_and_said(family, run, words):
    call = inputs.call(family, inputs.SHAPES[0], "fp32", 2)
    found = runs.judged(call, run(call))
    assert found.answer == "LESS EXACT", found.summary()
    assert words in found.why, found.why


@pytest.mark.parametrize(("times", "answer"), [(20, "LESS EXACT"), (1000, "BUG")])
def test_a_faint_fault_in_fp32_is_less_exact_and_a_larger_one_a_bug(times, answer):
    """Only channel 3 errs, by 20 or by 1000 sigmas."""
    call, out = (c := inputs.call("normal", inputs.SHAPES[0], "fp32", 7)), right.exact(c)[0]
    sigma = torch.from_numpy(runs.judged(call, right.all_fp32(call)).sigma).reshape(out.shape)
    out[..., 3] += times * sigma[..., 3]
    found = runs.judged(call, out.float())
    assert found.answer == answer, found.summary(verbose=False)
    excused = any(words in found.why for words in ("sums of another order", "the mean of V off"))
    assert excused == (answer == "LESS EXACT")


def test_a_wrong_factor_is_not_excused_as_coarser_arithmetic():
    call = inputs.call("v of mean 1", inputs.SHAPES[0], "fp32", 2)
    off = wrong.run(wrong.stored(lambda w, out: out * 0.995), call)
    assert runs.judged(call, off).answer == "BUG"


def test_scores_in_16_bits_are_less_exact_and_no_bug():
    call = inputs.call("peaky", inputs.SHAPES[1], "bf16", 1)
    out = wrong.run(wrong.scored(lambda w: w.s.to(w.call.q.dtype).double()), call)
    found = runs.judged(call, out)
    assert found.answer == "LESS EXACT", found.summary()
    keys = (call.q, call.k, call.v)
    with pytest.raises(AssertionError, match="LESS EXACT"):
        testing.assert_attention_close(out, *keys, scale=call.scale)
    testing.assert_attention_close(out, *keys, scale=call.scale, allow_less_exact=True)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("queries", "keys"), [(16, 128), (128, 48)])
def test_a_cap_of_50_left_on_is_a_bug_where_no_element_exceeds_its_bound(queries, keys, seed):
    """A verdict once excused two of these as kernels that take the mean of V off."""
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 2, n, 64, generator=g).bfloat16() for n in (queries, keys, keys))
    scores = q.double() @ k.double().mT / 8
    for s, answer in ((50 * torch.tanh(scores / 50), "BUG"), (scores, "ROUNDING")):
        p = torch.exp(s - s.amax(-1, keepdim=True))
        p = p / p.sum(-1, keepdim=True) if seed else p
        out = p.bfloat16().double() @ v.double() / (1 if seed else p.sum(-1, keepdim=True))
        assert verdict(out.bfloat16(), q, k, v).answer == answer
