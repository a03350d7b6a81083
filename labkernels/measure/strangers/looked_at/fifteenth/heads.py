"""Bugs of heads, channels and rotations: which head, in which layout, turned by how much."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.fifteenth.frame import (
    heads,
    keys,
    packed,
    reading,
    scoring,
    speeds,
    storing,
    turned,
    unpacked,
)
from labkernels.measure.strangers.wrong import Work, masked


def _of_heads(index):
    """What is read with index(work, heads) in the place of the heads."""
    return lambda w, x: x[:, index(w, heads(w).flatten())]


def _half_a_group_off(w: Work, h):
    g = w.call.group
    return ((h + (g + 1) // 2) // g * g) % w.q.shape[1]


def _by_modulo(w: Work, h):
    return h % (w.q.shape[1] // w.call.group) * w.call.group


def _heads_transposed(w: Work, out):
    b, h, *rest = out.shape
    return out.reshape(b, h // w.call.group, w.call.group, *rest).transpose(1, 2).reshape(out.shape)


def _turned_keys(angles):
    """K turned by angles(places [S, 1], speeds [D // 2], number of keys)."""

    def change(w: Work, x):
        return turned(x, angles(keys(w)[:, None].double(), speeds(x), len(keys(w))))

    return change


def _other_base(w: Work, x):
    return turned(x, keys(w)[:, None].double() * (speeds(x, 5e4) - speeds(x)))


def _last_chunk_of_the_next_key(w: Work, x):
    out = x.clone()
    out[..., -16:] = x[:, :, (keys(w) + 1).clamp(max=len(keys(w)) - 1), -16:]
    return out


def _fragments_exchanged(w: Work):
    """Two registers of Q's fragments exchanged: 8 rows down with 8 channels to the right."""
    q = packed(w, w.q)
    b, h, rows, d = q.shape
    whole = d // 16 * 16
    if not whole:
        return w.s
    tall = torch.cat([q, q.new_zeros(b, h, -rows % 16, d)], 2)
    part = tall[..., :whole].reshape(b, h, -1, 2, 8, whole // 16, 2, 8)
    swapped = part.clone()
    swapped[:, :, :, 1, :, :, 0] = part[:, :, :, 0, :, :, 1]
    swapped[:, :, :, 0, :, :, 1] = part[:, :, :, 1, :, :, 0]
    tall = torch.cat([swapped.reshape(b, h, -1, whole), tall[..., whole:]], -1)
    return w.scores(q=unpacked(w, tall[:, :, :rows]))


def _k_for_v(w: Work, x):
    dim = w.v.shape[-1]
    wide = torch.cat([w.k, w.k], -1)
    return wide[..., :dim]


def _halves_of_other_scales(w: Work):
    """The rotated half of the channels has the scale of a head of its own."""
    half = w.q.shape[-1] // 2
    s = w.q[..., :half] @ w.k[..., :half].mT + 2**0.5 * (w.q[..., half:] @ w.k[..., half:].mT)
    return masked(s * w.call.scale, w.hidden)


BUGS: dict[str, Bug] = {
    "groups begin in the middle": reading(_of_heads(_half_a_group_off)),
    "K's heads by modulo, V's by groups": reading(_of_heads(_by_modulo), "k"),
    "output heads as groups by KV heads": storing(_heads_transposed),
    "V's heads all the first": reading(_of_heads(lambda w, h: 0 * h), "v"),
    "queries of the first request": scoring(lambda w: w.scores(q=w.q[:1].expand_as(w.q))),
    "cached keys turned again": reading(
        _turned_keys(lambda at, by, n: torch.where(at < n - n // 3, at, 0 * at) * by), "k"
    ),
    "places of keys start again each 64": reading(
        _turned_keys(lambda at, by, n: -(at // 64 * 64) * by), "k"
    ),
    "values turned like keys": reading(_turned_keys(lambda at, by, n: at * by), "v"),
    "sine of the keys with the other sign": reading(
        _turned_keys(lambda at, by, n: -2 * at * by), "k"
    ),
    "keys turned with another base": reading(_other_base, "k"),
    "last 16 channels of K from the next key": reading(_last_chunk_of_the_next_key, "k"),
    "two registers of Q exchanged": scoring(_fragments_exchanged),
    "K's pointer for V": reading(_k_for_v, "v"),
    "a scale of its own for half the channels": scoring(_halves_of_other_scales),
}
"""Name: the bug."""
