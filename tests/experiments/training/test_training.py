"""A tiny model trains on a CPU by every way that a CPU has, and two trainings have equal bits."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend

from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.training import losses, text, ways
from labkernels.experiments.training.model import Gpt, Size
from labkernels.records import schema

RUN = replace(losses.QUICK, steps=6)
WIDE = replace(losses.QUICKS[losses.WIDE], steps=6)
TENSOR_CORES = ("tensor cores", "rounded denominator", *ways.BY_DECODE)
IN_16_BITS = (*TENSOR_CORES, "CUDA cores", "torch math", "torch fp32")
IN_8_BITS = ("e4m3", *ways.CONTROLS)
ON_A_CPU = [(RUN, way, 8) for way in IN_16_BITS] + [
    (WIDE, way, 4) for way in IN_8_BITS
]  # and bits of a number


def test_batches_are_of_the_seed_and_held_out_text_is_another():
    first, again, other = (
        next(text.batches(seed, batch=3, context=20, device="cpu")) for seed in (0, 0, 1)
    )
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[0][:, 1:], first[1][:, :-1])
    trained, held = text.sources()
    assert len(trained) > 5_000_000
    assert len(held) > len(trained) // 20


@pytest.mark.parametrize(("run", "way", "bits"), ON_A_CPU)
def test_logits_are_those_of_attention_in_fp32(run, way, bits):
    size = run.size
    torch.manual_seed(0)
    model = Gpt(size)
    tokens, _ = next(text.batches(0, batch=2, context=size.context, device="cpu"))
    with torch.no_grad():
        want = model(tokens, ways.WAYS["torch fp32"]())
        found = model(tokens, ways.WAYS[way]())
    # q, k, v, P and out are rounded; one layer adds them to a stream of the same size
    assert (found - want).abs().max() <= 5 * 2.0**-bits * want.abs().max()
    earlier = tokens.clone()
    earlier[:, -1] = 0
    with torch.no_grad():  # a token does not see later ones
        cut = model(earlier, ways.WAYS[way]())
    assert torch.equal(cut[:, :-1], found[:, :-1])


@pytest.mark.parametrize("window", [None, 7])
def test_a_decode_for_each_token_is_a_prefill_and_p_in_two_parts_leaves_the_rounding_of_out(window):
    torch.manual_seed(0)
    qkv = [torch.randn(2, 96, heads, 64).bfloat16().double() for heads in (6, 2, 2)]
    want = ways.torchs(SDPBackend.MATH, torch.float64)(*qkv, window)
    given, errors = {}, {}
    for way in ("tensor cores", *ways.BY_DECODE):
        out = ways.WAYS[way]()(*qkv, window, note=lambda *of, way=way: given.update({way: of}))
        errors[way] = float((out - want).norm())
    rounding = float((want.bfloat16() - want).norm())
    both, control = (errors[way] for way in ways.BY_DECODE)
    assert rounding <= both <= 1.001 * rounding
    assert 1.1 * rounding < control <= 1.01 * errors["tensor cores"]
    for *_, lse2 in given.values():  # fp32, of logits up to 8
        assert (lse2 - given["tensor cores"][-1]).abs().max() <= 8 * 2.0**-22


@pytest.mark.parametrize(("run", "way", "bits"), ON_A_CPU)
def test_gradients_are_those_of_attention_in_fp32(run, way, bits):
    heads = (run.size.q_heads, run.size.kv_heads, run.size.kv_heads)
    torch.manual_seed(0)
    qkv = [torch.randn(2, 40, n, run.size.head_dim, requires_grad=True) for n in heads]
    dout = torch.randn_like(qkv[0])
    found, want = (
        torch.autograd.grad(ways.WAYS[name]()(*qkv), qkv, dout) for name in (way, "torch fp32")
    )
    for made, exact in zip(found, want, strict=True):
        # q, k, v, P, out and dS are rounded, each by half an ulp or less
        assert (made - exact).norm() <= 2 * 2.0**-bits * exact.norm()


@pytest.mark.parametrize(("run", "way", "bits"), ON_A_CPU)
def test_a_training_learns(run, way, bits):
    found = list(losses.trained(losses.Case(way, 0), replace(run, steps=12, every=1), "cpu"))
    values = [value for what, _, value in found if what == losses.TRAINING]
    assert len(values) == 12
    # ln 256 with logits near zero, and less where a byte follows itself, as indentation does
    assert 4.9 <= values[0] <= 5.6
    assert values[-1] < values[0] - 0.2
    assert [what for what, *_ in found[-2:]] == [losses.HELD_OUT, losses.EXACT]
    assert abs(found[-1][2] - found[-2][2]) <= 2.0**-bits


def test_weights_of_the_backward_pass_sum_to_one_if_its_inputs_are_of_one_pass():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 64, heads, 128) for heads in (2, 1, 1))
    q, k = 4 * (q + 3 * torch.randn(128)), 4 * (k + 3 * torch.randn(128))  # large logits

    def model(_, attend):
        return attend(q, k, v)

    off = {
        way: (losses.weighed(model, ways.WAYS[way](), torch.zeros(1, 64)) - 1).abs().max()
        for way in ("tensor cores", *IN_8_BITS)
    }
    assert off["e4m3"] > 100
    assert off["e4m3, gradients of its codes"] <= 0.25  # sums of 8-bit products keep 13 bits
    assert off["e4m3, gradients of bf16"] <= 1e-3
    assert off["tensor cores"] <= 1e-3


def test_two_trainings_have_equal_bits_and_another_way_parts():
    case = losses.Case("tensor cores", 0, 2)
    assert losses.first_difference(case, RUN, "cpu") == RUN.steps


def test_bits_that_part_are_found(monkeypatch):
    attends = iter([ways.WAYS["tensor cores"](), ways.WAYS["torch fp32"]()])
    monkeypatch.setitem(ways.WAYS, "tensor cores", lambda: next(attends))
    assert losses.first_difference(losses.Case("tensor cores", 0, 2), RUN, "cpu") == 0


def test_rows_of_a_training_in_8_bits_fit_their_table(tmp_path):
    options = Options(out=tmp_path, quick=True, commit="1234567", only="128 channels/e4m3/")
    recording = Recording(losses.EXPERIMENT, options, losses.EXPERIMENT.chosen(options))
    (cell,) = recording.cells
    origin = {name: recording.origin[name] for name in ("started_utc", "commit", "device")}
    found = [origin | row for _, row in losses.rows(cell, recording)]
    assert [row["what"] for row in found[-2:]] == [losses.HELD_OUT, losses.EXACT]
    for row in found:
        schema.validate(row, schema.TABLES["training"])


def test_the_grid_has_every_way_from_every_seed():
    cells = [cell.of for cell in losses.cells(Options())]
    once = {(case.way, case.seed) for case in cells if case.runs == 1}
    assert once == {(way, seed) for way in ways.WAYS for seed in losses.SEEDS}
    assert all(case.model == losses.WIDE for case in cells if case.way in IN_8_BITS)
    assert Size().width == Size().q_heads * Size().head_dim
