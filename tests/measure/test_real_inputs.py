"""Heads of a trained model: they are what their words say, and become inputs of both verbs."""

import numpy as np
import pytest
import torch

from labkernels.chapters import live
from labkernels.measure import real_inputs
from labkernels.numerics.arrays import as_float64


def weights(name, length=256):
    """Return the causal weights of a head, [query heads, queries, keys], and its scores."""
    drawn = real_inputs.prefill_of((length,), (name,))
    scores = np.einsum("qhd,kd->hqk", as_float64(drawn.q), as_float64(drawn.kv.k)[:, 0])
    seen = np.tri(real_inputs.QUERIES, length, length - real_inputs.QUERIES, dtype=bool)
    scores = np.where(seen, drawn.scale * scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True), scores


def near(p, back):
    """Return the mean weight of the key so many before a query's own, for each query head."""
    last = p.shape[-1] - real_inputs.QUERIES
    return np.stack([p[:, i, last + i - back] for i in range(real_inputs.QUERIES)]).mean(0)


@pytest.mark.parametrize("length", [256, 2048])
def test_the_diffuse_head_shares_its_weight_among_half_of_the_keys(length):
    shared = np.median(1 / np.square(weights("diffuse", length)[0]).sum(-1), axis=-1)
    assert (0.35 * length < shared).all()
    assert (shared < 0.65 * length).all()


def test_the_peaky_head_sees_the_key_before():
    p, scores = weights("peaky")
    assert (near(p, 1) > [near(p, back) for back in (0, 2, 3)]).all()
    assert round(scores[np.isfinite(scores)].min()) == -31


def test_one_head_sees_its_own_key():
    p, _ = weights("own key")
    assert np.argmax([near(p, back) for back in range(4)], axis=0).tolist() == [0, 1, 1]
    assert near(p, 0)[0] > 0.6


def test_a_channel_of_k_is_an_outlier():
    k = np.abs(as_float64(real_inputs.prefill_of((256,), ("outlier channel",)).kv.k)[1:, 0])
    largest = k.max(0)
    assert 5.5 < largest.max() / np.median(largest) < 6.5


def test_the_first_key_has_nearly_all_weight_and_a_small_value():
    assert (weights("first key")[0][..., 0].mean(-1) > 0.8).all()
    v = as_float64(real_inputs.prefill_of((256,), ("first key",)).kv.v)[:, 0]
    sizes = np.linalg.norm(v, axis=-1)
    assert sizes[0] < 0.1 * np.median(sizes[1:])


def test_values_are_large_where_the_words_say_so():
    v = as_float64(real_inputs.prefill_of((256,), ("large values",)).kv.v)
    assert np.abs(v).max().round() == 14
    assert (abs(weights("large values")[0][..., 0].mean(-1) - 0.5) < 0.1).all()


def test_the_long_head_has_three_kinds_of_query_heads():
    p, _ = weights("long", 8192)
    assert p[0, :, 0].mean() > 0.7
    assert np.argmax([near(p, back) for back in range(9)], axis=0)[1] == 0
    assert np.median(1 / np.square(p[2]).sum(-1)) > 30


def test_a_decode_is_the_last_row_of_a_causal_prefill():
    lengths, heads = (2048, 200), ("long", "diffuse")
    decoded = live.truth(real_inputs.decode_of(lengths, heads))
    for found, length in zip(decoded, lengths, strict=True):
        prefilled = live.truth(real_inputs.prefill_of((length,), heads, queries=3))
        assert np.allclose(found, prefilled[-1], rtol=0, atol=1e-12)


def test_fp16_has_the_same_numbers():
    fp16, bf16 = (real_inputs.prefill_of((256,), dtype=dtype) for dtype in ("fp16", "bf16"))
    assert fp16.workload.dtype == "fp16"
    for x, y in ((fp16.q, bf16.q), (fp16.kv.k, bf16.kv.k), (fp16.kv.v, bf16.kv.v)):
        assert torch.allclose(x.double(), y.double(), rtol=0, atol=2.0**-25)


def test_queries_that_were_not_kept_are_refused():
    with pytest.raises(ValueError, match="the last 64 before 256, 2048"):
        real_inputs.decode_of((8192,), ("long", "diffuse"))
    with pytest.raises(ValueError, match="of 'peaky'; allowed: the last 64 before 256"):
        real_inputs.prefill_of((256,), ("peaky",), queries=65)
