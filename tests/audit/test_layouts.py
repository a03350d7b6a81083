"""Tensors as [B, S, H, D] are judged as such, and no name is sought in a reading that is wrong."""

import numpy as np
import pytest
import torch

import labkernels
from labkernels.audit import dumps
from labkernels.audit.verdict import TAKEN_AS_BSHD
from labkernels.numerics.verdict.diagnosis import names

GENERATOR = torch.Generator().manual_seed(5)


def bshd(tokens=48, heads=4, kv_heads=2):
    """Return a causal attention's tensors as [B, S, H, D], of which the output is rounded once."""
    shapes = [(2, tokens, n, 64) for n in (heads, kv_heads, kv_heads)]
    q, k, v = (torch.randn(shape, generator=GENERATOR).half() for shape in shapes)
    wide = [x.double().transpose(1, 2) for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).half().contiguous(), q, k, v


@pytest.fixture
def sought(monkeypatch):
    """Return the outputs in which a name has been sought so far."""
    seen, of_output = [], names.of_output

    def noted(case):
        seen.append(case.out)
        return of_output(case)

    monkeypatch.setattr(names, "of_output", noted)
    return seen


def test_a_right_output_as_bshd_is_rounding_and_no_name_is_sought(sought):
    out, q, k, v = bshd()
    found = labkernels.verdict(out, q, k, v, causal=True)
    assert (found.answer, found.note) == ("ROUNDING", TAKEN_AS_BSHD)
    same = dumps.judge({"q": q, "k": k, "v": v, "out": out, "causal": True})
    assert (same.answer, same.note) == ("ROUNDING", TAKEN_AS_BSHD)
    assert not sought


def test_a_wrong_output_as_bshd_is_named_where_it_is_least_wrong(sought):
    out, q, k, v = bshd()
    wrong = out.clone()
    wrong[1, 40:] = 0
    found = dumps.judge({"q": q, "k": k, "v": v, "out": wrong, "causal": True})
    assert (found.answer, found.note, len(sought)) == ("BUG", TAKEN_AS_BSHD, 1)
    same = labkernels.verdict(wrong, q, k, v, causal=True)
    assert (same.answer, same.note, len(sought)) == ("BUG", TAKEN_AS_BSHD, 2)
    told = labkernels.verdict(wrong, q, k, v, causal=True, layout="bshd")
    assert told.answer == "BUG"
    assert found.matches == same.matches == told.matches


def test_a_layout_that_is_told_is_the_only_one():
    out, q, k, v = bshd()
    assert labkernels.verdict(out, q, k, v, causal=True, layout="bhsd", named=False).answer == "BUG"
    with pytest.raises(ValueError, match="layout = 'hsbd', allowed: bhsd, bshd"):
        labkernels.verdict(out, q, k, v, layout="hsbd")


def test_a_bug_is_told_without_a_name(sought):
    out, *given = (np.asarray(x.transpose(1, 2)) for x in bshd())
    found = labkernels.verdict(out * np.float16(1.5), *given, causal=True, named=False)
    assert (found.answer, found.matches, sought) == ("BUG", (), [])


def test_two_outputs_as_bshd_are_compared_in_their_own_order():
    out, q, k, v = bshd()
    wrong = out.clone()
    wrong[0, 3, 1, 7] += 1
    found = labkernels.compare(out, wrong, q, k, v, causal=True, named=False)
    assert (found.wrong, found.first) == ("b", (3, 1, 7))
