"""Two outputs are equal, differ by rounding or by a bug; [B, S, H, D] is told from [B, H, S, D]."""

import dataclasses

import numpy as np
import pytest
import torch

import labkernels
from labkernels import cli
from labkernels.audit import comparison, dumps
from labkernels.audit.comparison import EQUAL, compare_tensors
from labkernels.audit.verdict import TAKEN_AS_BSHD
from labkernels.numerics.truth import oracle
from labkernels.numerics.verdict.diagnosis import search
from tests.measure.strangers import inputs, right

PREFILL = inputs.Shape(1, 2, 1, 90, 90, 32, causal=True)
FLASH = right.RIGHT["flash, blocks of 64"]
SHORT = right.Flash(block=32)
GENERATOR = torch.Generator().manual_seed(5)


def dump(call, out, **more):
    return {"q": call.q, "k": call.k, "v": call.v, "out": out, "causal": 1, **more}


def decode_of(call, n):
    """Return the last n queries, each as its own request with the keys up to that query."""
    length = call.k.shape[2]
    q = call.q[0, :, length - n :].transpose(0, 1)
    k, v = (x.expand(n, *x.shape[1:]).contiguous() for x in (call.k, call.v))
    lens = torch.arange(length - n + 1, length + 1)
    outs = []
    for i in range(n):
        keys = int(lens[i])
        one = inputs.Call(q[i][None, :, None], k[:1, :, :keys], v[:1, :, :keys], False, call.scale)
        outs.append(SHORT(one)[0, :, 0])
    return {"q": q, "k": k, "v": v, "kv_len": lens, "out": torch.stack(outs), "scale": call.scale}


def test_equal_bits_and_the_first_tile_where_two_part():
    call = inputs.call("normal", PREFILL, "bf16", 1)
    same = compare_tensors(dump(call, FLASH(call)), dump(call, FLASH(call)))
    assert same.answer == EQUAL
    other = compare_tensors(dump(call, FLASH(call)), dump(call, SHORT(call)))
    assert other.answer == "ROUNDING"
    assert "rows of up to" in other.summary()


def test_decode_against_prefill_matches_tokens_by_their_queries():
    call = inputs.call("normal", PREFILL, "bf16", 2)
    found = compare_tensors(dump(call, FLASH(call)), decode_of(call, 3))
    assert found.answer == "ROUNDING", found.summary()
    assert found.tokens_a.tolist() == [87, 88, 89]
    wrong = decode_of(call, 3)
    wrong["out"] = wrong["out"].roll(1, 1)
    found = compare_tensors(dump(call, FLASH(call)), wrong)
    assert found.answer == "BUG"
    assert found.summary().startswith("BUG: b wrong")


def test_the_command(tmp_path, capsys):
    call = inputs.call("normal", PREFILL, "bf16", 3)
    torch.save(dump(call, FLASH(call)), tmp_path / "a.pt")
    torch.save({"out": SHORT(call)}, tmp_path / "b.pt")
    paths = [str(tmp_path / name) for name in ("a.pt", "b.pt")]
    assert cli.main(["compare", *paths]) == 0
    assert capsys.readouterr().out.startswith("ROUNDING: ")
    torch.save({"out": SHORT(call) * 0}, tmp_path / "b.pt")
    assert cli.main(["compare", *paths]) == 1
    assert cli.main(["compare", paths[0], str(tmp_path / "no.pt")]) == 2


# ---- tensors as [B, S, H, D]


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
    seen, of_output = [], search.of_output

    def noted(problem, policy, arrays, *filtered, **how):
        seen.append(arrays[0])
        return of_output(problem, policy, arrays, *filtered, **how)

    monkeypatch.setattr(search, "of_output", noted)
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


def test_lists_of_heads_that_fit_one_layout_alone_leave_that_one():
    out, q, k, v = (x.transpose(1, 2) for x in bshd(tokens=10, heads=4, kv_heads=2))
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    found = labkernels.verdict(-out, q, k, v, causal=True, alibi=slopes, named=False)
    assert (found.answer, found.note) == ("BUG", "")


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


OTHERS = {
    "another K": lambda given: {"k": given["k"].roll(1, 2)},
    "another V": lambda given: {"v": given["v"] * 2},
    "another scale": lambda given: {"scale": 0.5},
    "another flag": lambda given: {"causal": False},
    "a window": lambda given: {"window_left": 3},
    "a soft cap": lambda given: {"soft_cap": 2.0},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_inputs_are_no_rounding(name, tmp_path, capsys):
    """Each output is right for its own inputs, so that nothing but the inputs differs."""
    call = inputs.call("normal", PREFILL, "bf16", 3)
    given = dump(call, FLASH(call))
    other = given | OTHERS[name](given)
    problem = dumps.judge(other, named=False).problem
    exact = oracle.attention(problem)[0].reshape(*call.q.transpose(1, 2).shape)
    other["out"] = torch.from_numpy(exact).transpose(1, 2).bfloat16()
    for path, tensors in (("a.pt", given), ("b.pt", other)):
        torch.save(tensors, tmp_path / path)
    code = cli.main(["compare", str(tmp_path / "a.pt"), str(tmp_path / "b.pt")])
    out = capsys.readouterr().out
    assert (code, out.partition(":")[0]) == (2, "OTHER INPUTS"), out
    assert "inputs of a and b: " in out


def test_keys_repeated_for_each_query_head_are_no_other_inputs():
    call = inputs.call("normal", inputs.Shape(1, 4, 2, 8, 8, 32), "bf16", 1)
    given, wide = dump(call, FLASH(call)), {"k": call.k.repeat_interleave(2, 1)}
    wide = given | wide | {"v": call.v.repeat_interleave(2, 1)}
    assert compare_tensors(given | {"causal": 0}, wide | {"causal": 0}).answer == EQUAL
    wide["v"] = wide["v"].clone()
    wide["v"][0, 1, 0, 0] += 1
    assert "V differs in 1 requests" in compare_tensors(given, wide).inputs


def test_a_distance_beyond_both_bounds_is_never_rounding():
    call = inputs.call("normal", PREFILL, "bf16", 3)
    found = comparison.compare_tensors(
        dump(call, FLASH(call)), dump(call, SHORT(call)), named=False
    )
    assert found.answer == "ROUNDING"
    far = dataclasses.replace(found, out_b=found.out_b + 1.0)
    assert far.answer == "INCONCLUSIVE"
