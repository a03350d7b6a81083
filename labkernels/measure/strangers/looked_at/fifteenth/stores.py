"""Bugs of the epilogue: which row is divided by what, and where and whether it is stored."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.fifteenth.frame import (
    finite,
    heads,
    kept,
    noise,
    packed,
    storing,
    summed,
    unpacked,
)
from labkernels.measure.strangers.wrong import Work


def _pairs_of_rows(w: Work, out):
    """The second half of the channels of rows 2i and 2i + 1 lands in the other row."""
    rows = packed(w, out)
    whole, half = rows.shape[2] // 2 * 2, rows.shape[3] // 2
    new = rows.clone()
    new[:, :, :whole, half:] = (
        rows[:, :, :whole].unflatten(2, (-1, 2)).flip(3).flatten(2, 3)[..., half:]
    )
    return unpacked(w, new)


def _last_row_left_out(w: Work, out):
    rows = packed(w, out).clone()
    rows[:, :, -1] = 0
    return unpacked(w, rows)


def _added_to_the_request_before(w: Work, out):
    return torch.cat([out[:1], (out[1:].double() + out[:-1].double()).to(out.dtype)])


def _heads_and_queries(w: Work, out):
    return out.transpose(1, 2).reshape(out.shape)


def _half_by_another_sum(w: Work, p):
    o, l = kept(w, p) @ w.v, p.sum(-1, keepdim=True)
    half = o.shape[-1] // 2
    other = unpacked(w, packed(w, l).roll(1, 2))
    return torch.cat([o[..., :half], o[..., half:] * l / other], -1), l


def _divided_twice(w: Work, p):
    l = p.sum(-1, keepdim=True)
    return kept(w, p) @ w.v, torch.where(heads(w) % 2 == 1, l * l, l)


def _one_element_late(w: Work, out):
    return out.flatten().roll(1).reshape(out.shape)


def _channels_of_odd_rows(w: Work, out):
    """Odd rows store each 8 channels turned by two."""
    rows = packed(w, out).clone()
    d = rows.shape[-1] // 8 * 8
    odd = rows[:, :, 1::2, :d].unflatten(-1, (-1, 8)).roll(2, -1).flatten(-2)
    rows[:, :, 1::2, :d] = odd
    return unpacked(w, rows)


def _first_head_overwritten(w: Work, out):
    out = out.clone()
    out[1:, 0] = 0
    return out


def _nan_behind_the_end(w: Work, out):
    """Weights of 0 meet NaN behind the end of the last request, in some channels of V."""
    out = out.clone()
    out[-1, :, :, 3::16] = torch.nan
    return out


def _last_head_of_the_call_before(w: Work, out):
    """The grid ends before the last head, whose outputs are still those of the former call."""
    out = out.clone()
    out[:, -1] = noise(out[:, -1]).to(out.dtype)
    return out


def _zigzag(w: Work, out):
    """Quarters of the rows come back in the order in which ranks hold them."""
    parts = out.tensor_split(4, 2)
    return torch.cat([parts[i] for i in (0, 3, 1, 2)], 2)


def _not_divided_by_the_sum(w: Work):
    """Rows that one tile covers leave early, and are not divided by l."""
    m = finite(w.s.amax(-1, keepdim=True))
    p = torch.exp(w.s - m)
    l = p.sum(-1, keepdim=True)
    late = (torch.arange(w.q.shape[2]) < max(1, w.q.shape[2] // 4))[:, None]
    return (kept(w, p) @ w.v / torch.where(late, torch.ones_like(l), l)).to(w.call.q.dtype)


BUGS: dict[str, Bug] = {
    "second half of the channels in the row beside": storing(_pairs_of_rows),
    "last packed row left out": storing(_last_row_left_out),
    "output added to that of the request before": storing(_added_to_the_request_before),
    "heads and queries of the output exchanged": storing(_heads_and_queries),
    "half of the channels divided by another row's sum": summed(_half_by_another_sum),
    "odd heads divided twice": summed(_divided_twice),
    "stored one element late": storing(_one_element_late),
    "channels of odd rows turned by two": storing(_channels_of_odd_rows),
    "requests in the order of their lengths": storing(lambda w, out: out.flip(0)),
    "first head of later requests overwritten": storing(_first_head_overwritten),
    "NaN of a page behind the end": storing(_nan_behind_the_end),
    "last head of the former call": storing(_last_head_of_the_call_before),
    "quarters of the rows in the order of ranks": storing(_zigzag),
    "first rows not divided": _not_divided_by_the_sum,
}
"""Name: the bug."""
