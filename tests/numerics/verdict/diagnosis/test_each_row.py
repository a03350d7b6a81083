"""Names for mistakes that differ from row to row, and for reads that leave a tile or a request."""

import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong

CAUSAL = inputs.Shape(2, 6, 3, 40, 120, 48, causal=True)
DECODE = inputs.Shape(3, 4, 2, 1, 171, 64)


def _named(bug, shape: inputs.Shape, dtype: str = "bf16", family: str = "normal"):
    call = inputs.call(family, shape, dtype, 21)
    found = runs.judged(call, wrong.run(bug, call))
    assert found.answer == "BUG", found.summary()
    assert found.matches, found.summary()
    return found.matches[0]


def _rescaled_by_the_row_before(w: wrong.Work):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    parts = zip(p.split(32, -1), w.v.split(32, 2), strict=True)
    tops = torch.stack([s.amax(-1, keepdim=True) for s in w.s.split(32, -1)])
    factors = torch.exp((tops - tops.amax(0)).clamp(min=-3))
    o = sum(f.roll(1, 2) / f * (a @ v) for f, (a, v) in zip(factors, parts, strict=True))
    return (o / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _denominator_of_lanes(w: wrong.Work):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    lane = torch.arange(w.k.shape[2]) // 2 % 4
    l = torch.stack([p[..., lane == i].sum(-1) for i in range(4)], -1).clamp(min=1e-6)
    return (p @ w.v / l[..., torch.arange(w.v.shape[-1]) // 2 % 4]).to(w.call.q.dtype)


def _step_of_head_and_tile(w: wrong.Work):
    tile, head = wrong.keys_of(w) // 32, torch.arange(w.v.shape[1])[:, None]
    return w.v * (1 + 0.1 * ((3 * tile + head // w.call.group) % 5))[..., None]


def _one_token_late(w: wrong.Work):
    def late(x):
        flat = x.transpose(0, 1).flatten(1, 2).roll(-1, 1)
        return flat.unflatten(1, (len(x), -1)).transpose(0, 1)

    return wrong.attend(w.scores(k=late(w.k)), late(w.v), w.call.q.dtype)


def _stride(w: wrong.Work):
    at = torch.arange(w.k[0, 0].numel()).reshape(w.k.shape[2:])
    at = at + 8 * torch.arange(len(at))[:, None]
    return w.scores(k=w.k.flatten(2)[:, :, at % at.numel()])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("bug", "shape", "name"),
    [
        (_rescaled_by_the_row_before, CAUSAL, "o rescaled wrongly when the maximum moves"),
        (_denominator_of_lanes, DECODE, "another factor in each lane's channels"),
        (wrong.valued(_step_of_head_and_tile), CAUSAL, "V by a factor for each tile"),
        (_one_token_late, DECODE, "K and V read at an offset, across requests"),
        (wrong.scored(_stride), DECODE, "K read with a row stride +8 channels off"),
    ],
    ids=["rescale", "lanes", "steps of V", "requests", "stride"],
)
def test_a_mistake_that_no_number_of_all_rows_explains_has_a_name(bug, shape, name):
    assert name in _named(bug, shape).name


def _weights_transposed(w: wrong.Work):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    squares = p.unflatten(3, (-1, 8)).unflatten(2, (-1, 8))  # [B, H, M / 8, 8, L / 8, 8]
    moved = squares.transpose(3, 5).flatten(4).flatten(2, 3)
    return (moved @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _softmax_twice(w: wrong.Work):
    return wrong.attend(w.s.softmax(-1), w.v, w.call.q.dtype)


def _bytes_misread(w: wrong.Work):
    bytes_ = w.k.float().to(torch.float8_e4m3fn).view(torch.uint8)
    return w.scores(k=bytes_.view(torch.float8_e5m2).double())


@pytest.mark.parametrize(
    ("bug", "shape", "name"),
    [
        (_weights_transposed, CAUSAL, "P transposed: weights of other queries and keys"),
        (_softmax_twice, DECODE, "softmax applied twice"),
        (wrong.scored(_bytes_misread), DECODE, "K read as e5m2"),
    ],
    ids=["transposed", "twice", "bytes"],
)
def test_weights_and_bytes_in_the_place_of_others_have_a_name(bug, shape, name):
    assert _named(bug, shape).name == name


def test_pages_of_another_size_are_named_though_the_last_is_not_full():
    first = wrong.keys_read(lambda w: wrong.keys_of(w) // 16 * 16)
    assert "read from other keys" in _named(first, DECODE).name
    wide = wrong.keys_read(
        lambda w: (wrong.keys_of(w) // 8 * 16 + wrong.keys_of(w) % 8) % w.k.shape[2]
    )
    assert "as pages of 8 keys as 16" in _named(wide, DECODE).name


def test_a_lost_part_has_both_names_that_the_output_allows():
    lost = wrong.valued(lambda w: w.v * (wrong.keys_of(w) < 160)[:, None])
    assert _named(lost, DECODE).name.startswith("V read as 0, or the output of a split lost")


def test_a_key_that_counts_many_times_is_counted():
    many = torch.ones(DECODE.keys, dtype=torch.float64)
    many[0] = 9
    bug = lambda w: wrong.attend(w.s, w.v, w.call.q.dtype, weights=many)  # noqa: E731
    assert _named(bug, DECODE).name == "keys counted 9 times"


def test_a_lost_key_of_the_last_query_alone_has_the_names_of_a_mask_and_of_an_end():
    shape = inputs.Shape(2, 4, 2, 33, 33, 32, causal=True)
    lost = wrong.scored(lambda w: wrong.masked(w.s, wrong.keys_of(w) >= 32))
    assert _named(lost, shape).name == "causal mask is strict, or keys at the end left out"


def _merged_in_half_of_the_channels(w):
    weight = torch.ones_like(w.s)
    weight[..., :61] += torch.rand(w.s.shape[:3], generator=torch.Generator().manual_seed(4))[
        ..., None
    ]
    right = wrong.right_output(w)
    s = w.s + weight.log()
    other = wrong.attend(s, w.v, w.call.q.dtype)
    half = right.shape[-1] // 2
    return torch.cat([right[..., :half], other[..., half:]], -1)


def test_weights_of_parts_of_any_size_explain_some_channels():
    shape = inputs.Shape(2, 4, 2, 9, 90, 64, causal=True)
    names = _named(_merged_in_half_of_the_channels, shape, "fp32").name.split(", or ")
    assert names[0].startswith("splits merged with wrong weights in each row")
    assert names[-1].endswith("in some channels")


def test_channels_of_the_row_beside_are_those_of_its_output():
    def bug(w, out):
        rows = out.unflatten(1, (-1, w.call.group)).transpose(2, 3).flatten(2, 3)
        rows = torch.cat([rows[..., :16], rows.roll(-1, 2)[..., 16:]], -1)
        return rows.unflatten(2, (-1, w.call.group)).transpose(2, 3).flatten(1, 2)

    shape = inputs.Shape(2, 4, 2, 9, 90, 32)
    name = _named(wrong.stored(bug), shape, "fp32").name
    assert name.split(", or ")[0] == "another row's output, in some channels"
