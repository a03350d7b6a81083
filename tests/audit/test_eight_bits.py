"""The verdict finds and places what kernels do wrong with the codes and scales of a cache."""

from dataclasses import replace

import pytest
import torch

from labkernels import defects, ops, verdict
from labkernels.chapters.eight_bits import KINDS, held, judged
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import Normal

WORK = Decode((130, 33, 70), 8, 4, 64, dtype="bf16")
SCALES = torch.tensor([1.0, 3.0, 1.5, 6.0])  # beyond those that each head needs


@pytest.fixture(scope="module", params=KINDS)
def inputs(request):
    """Return a decode whose scales differ from head to head, in each format."""
    _, eight = held(decode_inputs(WORK, Normal(1, "cpu")), request.param)
    cache = eight.cache
    pools = [x.float() / SCALES[:, None] for x in (cache.k, cache.v)]
    k, v = (x.to(cache.k.dtype) for x in pools)
    scales = {n: getattr(cache, n) * SCALES for n in ("k_scale", "v_scale")}
    return replace(eight, cache=replace(cache, k=k, v=v, **scales))


def found(inputs, cache, kernel="reference"):
    """Return the verdict on the output of a kernel that reads another cache than it is given."""
    out = ops.decode(inputs.q, cache, scale=inputs.scale, kernel=kernel)
    return verdict(out.out, inputs.q, cache=inputs.cache, lse2=out.lse2, scale=inputs.scale)


def of_heads(scale, other, heads):
    """Return scales of which some heads have another."""
    chosen = torch.isin(torch.arange(len(scale)), torch.tensor(heads))
    return torch.where(chosen, other, scale)


MISTAKES = {
    "without its scale": torch.ones_like,
    "with its scale twice": lambda x: x * x,
    "with the scale of head -1": lambda x: x.roll(1),
    "with the scale of head +1": lambda x: x.roll(-1),
}


@pytest.mark.parametrize("heads", [[0, 1, 2, 3], [2]], ids=str)
@pytest.mark.parametrize("operand", ["K", "V", "K and V"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_scales_are_named_and_placed(inputs, mistake, operand, heads):
    names = [n for n in ("k_scale", "v_scale") if n[0].upper() in operand]
    cache = inputs.cache
    scales = {n: getattr(cache, n) for n in names}
    wrong = {n: of_heads(x, MISTAKES[mistake](x), heads) for n, x in scales.items()}
    told = found(inputs, replace(cache, **wrong))
    assert told.answer == "BUG"
    match = told.matches[0]
    assert f"{match.edit}" == f"{operand} {mistake}"
    assert match.kind == (defects.SCORES if "K" in operand else defects.VALUES)
    placed = None if len(heads) == 4 else tuple(2 * h + i for h in heads for i in (0, 1))
    assert match.region.heads == told.region.heads == placed


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
    _, eight = held(decode_inputs(WORK, Normal(2, "cpu")), "e5m2")
    eight = replace(eight, cache=replace(eight.cache, v_scale=2 * eight.cache.v_scale))
    codes = (eight.cache.v.float() / 2).to(eight.cache.v.dtype).view(torch.uint8)
    page = int(eight.cache.page_table[0, 0])
    caches = []
    for code in (0x7B, 0x7C):
        codes = codes.clone()
        codes[page, 3, 1, 5] = code
        caches.append(replace(eight.cache, v=codes.view(eight.cache.v.dtype)))
    finite, infinite = caches
    told = found(replace(eight, cache=infinite), finite)
    assert told.answer == "BUG"
    assert str(told.matches[0].edit) == "V saturated, where codes are not finite"
    assert told.region.heads == (2, 3)
    told = found(replace(eight, cache=finite), infinite)
    assert told.answer == "BUG"
    assert str(told.matches[0].edit) == "V infinite, where codes are the largest"
    assert found(replace(eight, cache=infinite), infinite).answer == "INCONCLUSIVE"


def test_right_kernels_and_other_bugs(inputs):
    for kernel in ("reference", "decode_fma"):
        assert found(inputs, inputs.cache, kernel).answer == "ROUNDING"
    rolled = replace(
        inputs.cache, v=inputs.cache.v.view(torch.uint8).roll(1, 3).view(inputs.cache.v.dtype)
    )
    told = found(inputs, rolled)
    assert told.answer == "BUG"
    assert all(
        "scale" not in str(match.edit) and "read as" not in str(match.edit)
        for match in told.matches
    )


def test_the_table_of_the_chapter(inputs):
    table = judged(inputs, "decode_mma").set_index("mistake")
    assert table.verdict["none"] == "ROUNDING"
    assert (table.drop("none").verdict == "BUG").all()
    assert table.named.drop("none").all()
