"""The verdict calls no right kernel a bug, and gives each wrong kernel the right name."""

import re
from dataclasses import replace

import pytest
import torch

from labkernels import QuantizedKV, RaggedKV, ops
from labkernels.audit.verdict import verdict
from labkernels.kernels.registry import discover
from labkernels.measure.mistakes.attention import Work
from labkernels.measure.mutants import decode
from labkernels.measure.mutants.decode import MUTANTS
from tests.audit.cases import FAMILIES, SHAPES, family_case, judged, prefill_family_case
from tests.kernels.contract import CUDA
from tests.measure.strangers import inputs, runs, wrong


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kernel", CUDA)
@pytest.mark.parametrize("out", ["input", "fp32"])
def test_no_right_kernel_is_called_a_bug(kernel, out):
    spec = CUDA[kernel]
    policy = next(p for p in spec.policies if (p.out, p.exp2) == (out, "mufu"))
    answers = []
    for dtype in ("fp16", "bf16"):
        for family in FAMILIES:
            for seed, (kv_lens, group, keys) in enumerate(SHAPES):
                case = family_case(family, kv_lens, group=group, dtype=dtype, seed=seed)
                done = ops.decode(
                    case.q,
                    case.cache,
                    kernel=kernel,
                    policy=policy,
                    scale=case.scale,
                    keys_per_split=keys,
                )
                found = judged(case, done.out, spec, policy, lse2=done.lse2)
                assert found.answer != "BUG", f"{dtype} {family} {kv_lens}\n{found.summary()}"
                answers.append(found.answer)
    assert answers.count("ROUNDING") >= len(answers) - 1


PREFILLS = {n: s for n, s in discover().items() if (s.operation, s.language) == ("prefill", "cuda")}
# Under a causal mask, rows see no key, one key or few; some tiles end where a request ends.
PREFILL_SHAPES = (
    ((5, 0, 40), (5, 9, 64)),
    ((130,), (130,)),
    ((17, 64), (200, 30)),
    ((1, 1), (90, 1)),
)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kernel", PREFILLS)
@pytest.mark.parametrize("out", ["input", "fp32"])
@pytest.mark.parametrize("causal", [True, False])
def test_no_right_prefill_is_called_a_bug(kernel, out, causal):
    spec = PREFILLS[kernel]
    policy = next(p for p in spec.policies if (p.out, p.exp2) == (out, "mufu"))
    answers = []
    for dtype in ("fp16", "bf16"):
        for family in FAMILIES:
            for seed, lens in enumerate(PREFILL_SHAPES):
                how = {"causal": causal, "dtype": dtype, "group": 1 + seed, "seed": seed}
                case = prefill_family_case(family, *lens, **how)
                done = case.run(kernel, policy=policy)
                found = judged(case, done.out, spec, policy, lse2=done.lse2)
                assert found.answer != "BUG", f"{dtype} {family} {lens}\n{found.summary()}"
                answers.append(found.answer)
    assert answers.count("ROUNDING") >= len(answers) - 1


# Words of a match. What is not here has no edit of its own, and is only located.
NAMES = {
    "padding in the denominator": "denominator",
    "head mix-up": "head",
    "unwritten row": "never written",
    "scale applied twice": "the scale applied twice",
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=MUTANTS)
def test_a_wrong_kernel_is_a_bug(number):
    mutant = list(MUTANTS.values())[number]
    kernel = list(mutant.edits)[number % len(mutant.edits)]
    case = decode.exposing_case(mutant, 305, "bf16", seed=number % 2, device="cpu")
    out = decode.decode(mutant, kernel, case)
    p_format = "fp32" if kernel == "decode_fma" else None
    found = verdict(out, case.q, cache=case.cache, scale=case.scale, p_format=p_format)
    # A sum in 16 bits loses small addends, which one output does not tell from a mistake.
    honest = mutant.name == "O accumulated in 16 bits"
    assert found.answer in ("BUG", *["LESS EXACT"] * honest), found.summary()
    assert found.region is not None
    if mutant.name in NAMES:
        assert any(NAMES[mutant.name] in match.name for match in found.matches), found.summary()


def _merged_in_16_bits(p_is_rounded: bool):
    """Return a kernel of splits whose partial outputs and their running merge have 16 bits."""

    def run(w: Work):
        out = lse = None
        for keys in torch.arange(w.s.shape[-1]).split(64):
            s, v = w.s[..., keys], w.v[..., keys, :]
            part = torch.logsumexp(s, -1, keepdim=True)
            p = torch.exp(s - s.amax(-1, keepdim=True))
            o = ((p.to(w.call.q.dtype).double() if p_is_rounded else p) @ v) / p.sum(-1, True)
            if out is not None:
                new = torch.logaddexp(lse, part)
                o = torch.exp(lse - new) * out + torch.exp(part - new) * o
                part = new
            out, lse = o.to(w.call.q.dtype).double(), part
        return out.to(w.call.q.dtype)

    return run


@pytest.mark.parametrize("p_is_rounded", [False, True], ids=["P in fp32", "P in 16 bits"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_merges_in_16_bits_are_less_exact(dtype, p_is_rounded):
    call = inputs.call("normal", inputs.Shape(2, 4, 2, 1, 505, 64), dtype, 3)
    out = wrong.run(_merged_in_16_bits(p_is_rounded), call)
    found = runs.judged(call, out, p_format="fp32")
    assert found.answer == "LESS EXACT", found.summary()
    assert re.search(r"P (rounded to|and partial)|partial outputs", found.why), found.why


def test_every_cache_is_read_as_the_numbers_that_it_stands_for():
    draw = torch.Generator().manual_seed(3)
    k, v = (torch.randn(4, 16, 2, 64, generator=draw) for _ in range(2))
    table, lengths = torch.tensor([[2, 0], [1, 3]]).int(), torch.tensor([20, 31]).int()
    scales = torch.tensor([0.5, 2.0])
    codes = (x.to(torch.float8_e4m3fn) for x in (k, v))
    narrow = QuantizedKV(*codes, table, lengths, scales, scales.flip(0))
    q = torch.randn(2, 8, 64, generator=draw).bfloat16()
    out = ops.decode(q, narrow).out
    assert verdict(out, q, cache=narrow).answer == "ROUNDING"
    swapped = replace(narrow, k_scale=scales.flip(0))
    assert verdict(out, q, cache=swapped).answer == "BUG"
    ends = torch.tensor([0, 32]).int()
    ragged = RaggedKV(*(x[:2].flatten(0, 1).bfloat16() for x in (k, v)), ends)
    q = torch.randn(32, 4, 64, generator=draw).bfloat16()
    out = ops.prefill(q, ragged, ends, causal=True).out
    assert verdict(out, q, cache=ragged, cu_seqlens_q=ends, causal=True).answer == "ROUNDING"
    with pytest.raises(ValueError, match="cache is a tuple, allowed: a PagedKV"):
        verdict(out, q, cache=(k, v))
