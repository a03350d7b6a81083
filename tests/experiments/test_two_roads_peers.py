"""FlashAttention-2's roads, with a stand-in for the package that attends in float32."""

import sys
from types import SimpleNamespace

import pytest
import torch

from labkernels.chapters import two_roads
from labkernels.experiments.accuracy import two_roads_peers as peers

LENGTHS = (130, 65, 1)


def attend(q, k, v, scale, causal):
    q, k, v = (x.float().transpose(0, 1) for x in (q, k, v))
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q, k, v, scale=scale, is_causal=causal).transpose(0, 1)


def packed(qkv, ends, longest, *, softmax_scale, causal):
    parts = qkv.split(ends.diff().tolist())
    assert longest == max(len(part) for part in parts)
    return torch.cat([attend(*part.unbind(1), softmax_scale, causal) for part in parts])


def kvcache(q, k_cache, v_cache, k, v, *, softmax_scale, causal, num_splits, cache_seqlens):
    assert causal
    assert num_splits in (0, 1)
    outs = []
    for i, n in enumerate(cache_seqlens.tolist()):
        k_cache[i, n], v_cache[i, n] = k[i, 0], v[i, 0]
        keys = (x[i, : n + 1] for x in (k_cache, v_cache))
        outs.append(attend(q[i], *keys, softmax_scale, False))
    return torch.stack(outs)


@pytest.mark.parametrize("num_splits", [0, 1])
def test_both_roads_attend_to_the_same_keys(monkeypatch, num_splits):
    package = SimpleNamespace(
        flash_attn_varlen_qkvpacked_func=packed, flash_attn_with_kvcache=kvcache
    )
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    given = two_roads.samples(LENGTHS)
    whole = peers.flash_attention_whole(given)
    last = peers.flash_attention_last(given, num_splits=num_splits)
    assert whole.shape == last.shape == (len(LENGTHS), two_roads.HEADS, two_roads.HEAD_DIM)
    # Sums in fp32 in another order, of values below 4.
    torch.testing.assert_close(last, whole, rtol=0, atol=1e-5)
