"""Attention in torch, in tiles with an online softmax, whose stages a test can change."""

import math
from collections.abc import Callable

import torch

TILE = 64
NOTHING: dict[str, Callable] = {}


def attention(
    q, k, v, *, causal=False, window=None, right=None, cap=None, scale=None, sinks=None,
    slopes=None, lens=None, p_exact=False, stages=NOTHING,
):  # fmt: skip
    """Return output and natural LSE of q [B, H, M, D], k, v [B, Hkv, N, D]; stages are edits."""

    def stage(name, x, *more):
        return stages[name](x, *more) if name in stages else x

    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    (b, h, m, d), n = q.shape, k.shape[2]
    q, k, v = stage("q", q.float()), *(x.float().repeat_interleave(group, 1) for x in (k, v))
    k, v = stage("k", k), stage("v", v)
    lens = torch.full((b,), n) if lens is None else lens.long()
    place = torch.arange(m) + (lens[:, None] - m)
    key = torch.arange(n)
    s = q @ k.transpose(-1, -2) * (scale or d**-0.5)
    s = cap * torch.tanh(s / cap) if cap else s
    if slopes is not None:
        s = s - slopes.view(1, -1, 1, 1) * (place[:, None, :, None] - key)
    seen = (key < lens[:, None, None]).expand(b, m, n)
    seen = seen & (key <= place[:, :, None]) if causal else seen
    seen = seen & (key >= place[:, :, None] - window) if window is not None else seen
    seen = seen & (key <= place[:, :, None] + right) if right is not None else seen
    seen = stage("mask", seen, place[:, :, None], key, lens[:, None, None])
    s = torch.where(seen[:, None], stage("s", s), torch.tensor(-math.inf))
    top = torch.full((b, h, m, 1), -math.inf)
    total, out = torch.zeros(b, h, m, 1), torch.zeros(b, h, m, v.shape[-1])
    for i, at in enumerate(range(0, n, TILE)):
        part = s[..., at : at + TILE]
        new = torch.maximum(top, part.amax(-1, keepdim=True))
        safe = torch.where(new.isinf(), torch.zeros(()), new)
        a, p = torch.exp(top - safe), torch.exp(part - safe)
        total = total * stage("rescale l", a, i) + stage("p of l", p, i).sum(-1, keepdim=True)
        rounded = stage("p", p if p_exact else p.to(dtype).float(), i)
        out = stage("o", out * stage("rescale o", a, i) + rounded @ v[..., at : at + TILE, :])
        top = new
    if sinks is not None:
        total = total + torch.exp(sinks.view(1, -1, 1, 1) - top)
    out = out / torch.where(total > 0, total, torch.ones(()))
    lse = (top + torch.log(total))[..., 0]
    return stage("out", out).to(dtype), stage("lse", lse)


def dense(**how) -> Callable:
    """Return a function of the layout bhsd."""
    return lambda q, k, v: attention(q, k, v, **how)


def paged(edit=None, **how) -> Callable:
    """Return a function of the layout paged_decode; edit: what it makes of table and lengths."""

    def fn(q, k_pages, v_pages, table, lens):
        of_k, of_v, lens = edit(table, lens) if edit else (table, table, lens)
        most = int(lens.max())
        k, v = (
            pages[t.long()].flatten(1, 2).transpose(1, 2)[:, :, :most]
            for pages, t in ((k_pages, of_k), (v_pages, of_v))
        )
        out, lse = attention(q[:, :, None], k, v, lens=lens, **how)
        return out[:, :, 0], lse[:, :, 0]

    return fn


def split(weigh: Callable, parts: int = 2) -> Callable:
    """Return a function that joins parts of the keys; weigh: from LSEs to weights and their sum."""

    def fn(q, k, v):
        some = zip(k.float().chunk(parts, 2), v.float().chunk(parts, 2), strict=True)
        found = [attention(q.float(), x, y, p_exact=True) for x, y in some]
        out, lse = (torch.stack(x) for x in zip(*found, strict=True))
        w, total = weigh(lse)
        return ((w[..., None] * out).sum(0) / total[..., None]).to(q.dtype), lse.logsumexp(0)

    return fn
