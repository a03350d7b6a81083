"""The verdict finds and places what kernels do wrong with the codes and scales of a cache."""

from dataclasses import replace

import pytest
import torch

from labkernels import defects, ops, verdict
from labkernels.audit.dumps import judge
from labkernels.chapters.eight_bits import KINDS, held
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.fp8 import CODES, RaggedCodes, prefill_fp8
from labkernels.kernels.random_inputs import Normal
from labkernels.policy import NumericPolicy

WORK = Decode((130, 33, 70), 8, 4, 64, dtype="bf16")


@pytest.fixture(scope="module", params=KINDS)
def inputs(request):
    """Return a decode whose scales differ from head to head, in each format."""
    drawn = decode_inputs(WORK, Normal(1, "cpu"))
    for pool in drawn.cache.pools:
        pool.mul_(torch.tensor([1.0, 1.5, 0.7, 2.0])[:, None])
    return held(drawn, request.param)[1]


def found(inputs, cache, kernel="reference"):
    """Return the verdict on the output of a kernel that reads another cache than it is given."""
    out = ops.decode(inputs.q, cache, scale=inputs.scale, kernel=kernel)
    return verdict(out.out, inputs.q, cache=inputs.cache, lse2=out.lse2, scale=inputs.scale)


def of_heads(scale, other, heads):
    return torch.where(torch.isin(torch.arange(4), torch.tensor(heads)), other, scale)


MISTAKES = {
    "without its scale": torch.ones_like,
    "with its scale twice": lambda x: x * x,
    "with the scale of head -1": lambda x: x.roll(1),
    "with the scale of head +1": lambda x: x.roll(-1),
}


@pytest.mark.parametrize(
    ("operand", "heads"), [("K", [0, 1, 2, 3]), ("V", [2]), ("K and V", [2])], ids=str
)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_scales_are_named_and_placed(inputs, mistake, operand, heads):
    scales = {
        n: getattr(inputs.cache, n) for n in ("k_scale", "v_scale") if n[0].upper() in operand
    }
    wrong = {n: of_heads(x, MISTAKES[mistake](x), heads) for n, x in scales.items()}
    told = found(inputs, replace(inputs.cache, **wrong))
    match = told.matches[0]
    assert (told.answer, str(match.edit)) == ("BUG", f"{operand} {mistake}")
    assert match.kind == (defects.SCORES if "K" in operand else defects.VALUES)
    placed = None if len(heads) == 4 else tuple(2 * h + i for h in heads for i in (0, 1))
    assert match.region.heads == told.region.heads == placed


def test_a_scale_by_which_v_is_divided(inputs):
    told = found(inputs, replace(inputs.cache, v_scale=1 / inputs.cache.v_scale), "decode_mma")
    assert (told.answer, str(told.matches[0].edit)) == ("BUG", "V divided by its scale")


def pages_of(scale, cache, step):
    """Return the scales that the next page (or the one before) has in each request."""
    found = scale.clone()
    for row, n in zip(cache.page_table.long(), cache.kv_len, strict=True):
        own = row[: -(-int(n) // cache.page_size)]
        found[own[:-1] if step > 0 else own[1:]] = scale[own[1:] if step > 0 else own[:-1]]
    return found


OF_OTHERS = {
    "its request's page before": lambda x, cache: pages_of(x, cache, -1),
    "its request's page after": lambda x, cache: pages_of(x, cache, 1),
    "page +1": lambda x, cache: x.roll(-1, 0),
    "the key before": lambda x, cache: x.roll(1, 1),
    "head +1": lambda x, cache: x.roll(-1, 2),
    "the first key of the page": lambda x, cache: x[:, :1].expand_as(x).contiguous(),
}


@pytest.mark.parametrize("operand", ["K", "V"])
@pytest.mark.parametrize("other", OF_OTHERS)
def test_scales_of_other_places_are_named(operand, other):
    work = replace(WORK, kv_dtype="e4m3", keys_per_scale=1 if "key" in other else 16)
    drawn = decode_inputs(work, Normal(3, "cpu"))
    size = torch.exp2(torch.randn(drawn.cache.k_scale.shape, generator=torch.Generator()))
    cache = replace(drawn.cache, k_scale=drawn.cache.k_scale * size, v_scale=size)
    inputs, name = replace(drawn, cache=cache), f"{operand.lower()}_scale"
    wrong = replace(cache, **{name: OF_OTHERS[other](getattr(cache, name), cache)})
    told = found(inputs, wrong)
    assert (told.answer, str(told.matches[0].edit)) == (
        "BUG",
        f"{operand} with the scale of {other}",
    )
    assert found(inputs, cache, "decode_mma").answer == "ROUNDING"


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
@pytest.mark.parametrize("step", [-1, 1])
def test_the_scale_of_a_neighbour_in_one_page(name, step):
    drawn = decode_inputs(replace(WORK, kv_dtype="e4m3", keys_per_scale=16), Normal(3, "cpu"))
    size = torch.exp2(torch.randn(drawn.cache.k_scale.shape, generator=torch.Generator()))
    cache = replace(drawn.cache, k_scale=drawn.cache.k_scale * size, v_scale=size)
    page, neighbour = cache.page_table[0, 4].item(), cache.page_table[0, 4 + step].item()
    wrong = getattr(cache, name).clone()
    wrong[page] = wrong[neighbour]
    told = found(replace(drawn, cache=cache), replace(cache, **{name: wrong}), "decode_mma")
    words = "before" if step < 0 else "after"
    words = f"with the scale of its request's page {words} in page {page} alone"
    assert (told.answer, str(told.matches[0].edit)) == ("BUG", f"{name[0].upper()} {words}")


def test_two_mistakes_of_two_heads(inputs):
    cache = inputs.cache
    v_scale = of_heads(cache.v_scale, torch.ones(4), [1])
    k_scale = of_heads(cache.k_scale, cache.k_scale**2, [3])
    told = found(inputs, replace(cache, k_scale=k_scale, v_scale=v_scale))
    words = {str(match.edit): match.region.heads for match in told.matches}
    assert words == {"V without its scale": (2, 3), "K with its scale twice": (6, 7)}


def test_codes_of_the_other_format(inputs):
    other = next(kind for kind in KINDS.values() if kind != inputs.cache.k.dtype)
    wrong = {n: getattr(inputs.cache, n).view(other) for n in ("k", "v")}
    told = found(inputs, replace(inputs.cache, **wrong))
    name = next(n for n, kind in KINDS.items() if kind == other)
    assert (told.answer, str(told.matches[0].edit)) == ("BUG", f"K and V read as {name}")


def test_saturated_against_infinite():
    """A code of e5m2 is infinite in one cache, and the largest number in the other."""
    eight = held(decode_inputs(WORK, Normal(2, "cpu")), "e5m2")[1]
    cache, caches = eight.cache, []
    for code in (0x7B, 0x7C):
        codes = (cache.v.float() / 2).to(cache.v.dtype).view(torch.uint8)
        codes[int(cache.page_table[0, 0]), 3, 1, 5] = code
        caches.append(replace(cache, v=codes.view(cache.v.dtype)))
    words = "V saturated, where codes are not finite", "V infinite, where codes are the largest"
    for word, right, wrong in zip(words, caches[::-1], caches, strict=True):
        told = found(replace(eight, cache=right), wrong)
        assert (told.answer, str(told.matches[0].edit)) == ("BUG", word)
        assert told.region.heads == (2, 3)
    assert found(replace(eight, cache=caches[1]), caches[1]).answer == "INCONCLUSIVE"


@pytest.mark.parametrize("operand", ["K", "V"])
def test_a_largest_code_of_e4m3_that_a_kernel_makes_nan(operand):
    """In e5m2 this code is NaN, too, but then other codes would be read otherwise."""
    eight = held(decode_inputs(WORK, Normal(2, "cpu")), "e4m3")[1]
    name, caches = operand.lower(), []
    for code in (0x7E, 0x7F):
        codes = (getattr(eight.cache, name).float() / 2).to(torch.float8_e4m3fn).view(torch.uint8)
        codes[int(eight.cache.page_table[0, 0]), 3, 1, 5] = code
        caches.append(replace(eight.cache, **{name: codes.view(torch.float8_e4m3fn)}))
    words = "NaN, where codes are the largest", "saturated, where codes are not finite"
    for word, right, wrong in zip(words, caches, caches[::-1], strict=True):
        told = found(replace(eight, cache=right), wrong, "decode_mma")
        assert (told.answer, str(told.matches[0].edit)) == ("BUG", f"{operand} {word}")
        assert told.region.heads == (2, 3)


@pytest.mark.parametrize("seed", range(4))
def test_a_scale_left_out_where_one_key_then_has_all_weight(seed):
    """P's one error then decides a row, so that more than chance is left of it."""
    work = replace(WORK, kv_dtype="e5m2", keys_per_scale=16)
    drawn = decode_inputs(work, Normal(seed, "cpu"))
    size = torch.exp2(torch.randn(drawn.cache.k_scale.shape, generator=torch.Generator()) / 2)
    cache = replace(drawn.cache, k_scale=size / 64)
    told = found(
        replace(drawn, cache=cache), replace(cache, k_scale=torch.ones_like(size)), "decode_mma"
    )
    assert (told.answer, str(told.matches[0].edit)) == ("BUG", "K without its scale")


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("each_request", [False, True])
def test_a_dump_of_codes_and_scales(inputs, as_bytes, each_request):
    """As vLLM keeps codes, in bytes, and as FlashAttention has scales, of each request and head."""
    cache, told = inputs.cache, {"q": inputs.q, "scale": inputs.scale}
    wrong = replace(cache, k_scale=of_heads(cache.k_scale, torch.ones(4), [1]))
    for name in ("k", "v"):
        codes, scale = getattr(cache, name), getattr(cache, f"{name}_scale")
        told[name] = codes.view(torch.uint8) if as_bytes else codes
        told[f"{name}_scale"] = scale.expand(cache.batch, -1) if each_request else scale
    told |= {"page_table": cache.page_table, "kv_len": cache.kv_len}
    told |= {"kv_dtype": inputs.workload.kv_dtype} if as_bytes else {}
    right, out = (ops.decode(inputs.q, x, scale=inputs.scale).out for x in (cache, wrong))
    assert judge(told | {"out": right}).answer == "ROUNDING"
    found = judge(told | {"out": out})
    assert (found.answer, str(found.matches[0].edit)) == ("BUG", "K without its scale")
    assert found.matches[0].region.heads == (2, 3)


@pytest.mark.parametrize("scaled", [False, True])
def test_scores_of_14_bits_are_no_bug(scaled):
    """P in fp16 shows what products of codes lose; each of these outputs is odd without that."""
    generator, scale = torch.Generator().manual_seed(0), 0.3 if scaled else 1.0
    q, k, v = (torch.randn(rows, 2, 128, generator=generator).to(CODES) for rows in (64, 512, 512))
    ends = {"cu_seqlens": torch.tensor([0, 512]), "cu_seqlens_q": torch.tensor([0, 64])}
    of_q, of_k = (torch.full((1, 2), x) for x in (scale, 1 / scale))
    how = {"policy": NumericPolicy(p="fp16"), "q_descale": of_q, "k_descale": of_k}
    kv = RaggedCodes(k, v, ends["cu_seqlens"].int())
    out = prefill_fp8(q, kv, ends["cu_seqlens_q"].int(), **how, target="h200").out
    given = (q.float() * of_q[0, 0], k.float() * of_k[0, 0], v.float())
    told = verdict(out, *given, **ends, p_format="fp16")
    assert told.answer == "ROUNDING"
    assert "products of 8 bits" in told.why
    off = verdict(out, given[0], given[1] * 1.004, given[2], **ends, p_format="fp16", named=False)
    assert off.answer == "BUG"


def test_right_kernels_and_other_bugs(inputs):
    for kernel in ("reference", "decode_fma"):
        assert found(inputs, inputs.cache, kernel).answer == "ROUNDING"
    codes = inputs.cache.v.view(torch.uint8).roll(1, 3).view(inputs.cache.v.dtype)
    told = found(inputs, replace(inputs.cache, v=codes))
    assert told.answer == "BUG"
    assert not any(word in told.summary() for word in ("its scale", "the scale of", "read as e"))
