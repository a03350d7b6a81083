"""flash-attn's functions give attention within the lab's bound, in flash-attn's conventions."""

import math

import pytest
import torch

import labkernels
from labkernels import PagedKV
from labkernels.compat import flash_attn
from labkernels.compat import flash_attn_interface as interface
from tests.compat.judged import close, normal
from tests.kernels.append.test_rotary import rotated

ENDS = torch.tensor([0, 3, 8], dtype=torch.int32)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
CAUSAL = {"causal": True}
Q, K, V = normal(2, 12, 4, 64), normal(2, 20, 2, 64), normal(2, 20, 2, 64).flip(0)


@pytest.mark.parametrize("is_causal", [False, True])
def test_requests_of_equal_length(is_causal):
    how = {"causal": is_causal, "softmax_scale": 0.2, "return_attn_probs": True}
    out, lse, pattern = flash_attn.flash_attn_func(Q, K, V, **how)
    assert lse.shape == (2, 4, 12)
    assert pattern.numel() == 0
    for b in range(2):
        close(out[b], Q[b], K[b], V[b], lse=lse[b].T, causal=is_causal, scale=0.2)
    assert torch.equal(flash_attn.flash_attn_func(Q, K, V, 0.0, 0.2, is_causal), out)


def test_packed_and_ragged_tensors_are_the_same_attention():
    qkv = normal(2, 12, 3, 4, 64)
    out = flash_attn.flash_attn_qkvpacked_func(qkv, causal=True)
    ends = torch.tensor([0, 12, 24], dtype=torch.int32)
    rows = qkv.flatten(0, 1)
    packed = flash_attn.flash_attn_varlen_qkvpacked_func(rows, ends, 12, causal=True)
    assert torch.equal(packed.unflatten(0, (2, 12)), out)
    ragged = flash_attn.flash_attn_varlen_func(*rows.unbind(1), ends, ends, 12, 12, causal=True)
    assert torch.equal(ragged, packed)
    close(out[1], *qkv[1].unbind(1), causal=True)


def test_ragged_lse_has_heads_first():
    q, k, v = normal(8, 4, 64), normal(8, 2, 64), normal(8, 2, 64).flip(0)
    given = (q, k, v, ENDS, ENDS, 5, 5)
    out, lse, _ = flash_attn.flash_attn_varlen_func(*given, return_attn_probs=True)
    for a, b in ((0, 3), (3, 8)):
        close(out[a:b], q[a:b], k[a:b], v[a:b], lse=lse[:, a:b].T)


def test_a_query_without_keys():
    out, lse, _ = flash_attn.flash_attn_func(
        Q, K[:, :8], V[:, :8], causal=True, return_attn_probs=True
    )
    assert not out[:, :4].any()
    assert torch.all(lse[:, :, :4] == -math.inf)


def test_gradients_reach_packed_tensors():
    qkv = normal(2, 12, 3, 4, 64)
    packed = qkv.clone().requires_grad_()
    flash_attn.flash_attn_qkvpacked_func(packed, causal=True, deterministic=True).sum().backward()
    ends = torch.tensor([0, 12, 24], dtype=torch.int32)
    parts = [x.flatten(0, 1).clone().requires_grad_() for x in qkv.unbind(2)]
    labkernels.attention(*parts, ends, ends, causal=True, deterministic=True)[0].sum().backward()
    for i, part in enumerate(parts):
        assert torch.equal(packed.grad[:, :, i].flatten(0, 1), part.grad)


def paged(k_cache, page_size):
    """Return a contiguous cache [batch, keys, ...] as scattered pages, and its table."""
    pages = k_cache.unflatten(1, (-1, page_size)).flatten(0, 1)
    order = torch.randperm(len(pages), generator=torch.Generator().manual_seed(0))
    pool = torch.empty_like(pages)
    pool[order] = pages
    return pool, order.int().view(len(k_cache), -1)


@pytest.mark.parametrize(("tokens", "window"), [(1, -1), (3, -1), (3, 4)])
@pytest.mark.parametrize("block_table", [False, True])
def test_a_cache_that_grows(tokens, window, block_table):
    k_cache, v_cache = normal(2, 48, 2, 64), normal(2, 48, 2, 64).flip(0)
    q, k, v = normal(2, tokens, 4, 64), normal(2, tokens, 2, 64), normal(2, tokens, 2, 64).flip(1)
    lengths = torch.tensor([40, 9], dtype=torch.int32)
    caches, more = (k_cache.clone(), v_cache.clone()), {}
    if block_table:
        (k_pool, table), (v_pool, _) = paged(k_cache, 16), paged(v_cache, 16)
        caches, more = (k_pool, v_pool), {"block_table": table}
    how = {"cache_seqlens": lengths, "causal": True, "window_size": (window, 0), **more}
    mask = CAUSAL if window < 0 else CAUSAL | {"window_left": window}
    out, lse = flash_attn.flash_attn_with_kvcache(q, *caches, k, v, return_softmax_lse=True, **how)
    assert lengths.tolist() == [40, 9]  # the caller advances them
    assert lse.shape == (2, 4, tokens)
    for b, n in enumerate(lengths.tolist()):
        keys, values = (
            torch.cat([old[b, :n], new[b]]) for old, new in ((k_cache, k), (v_cache, v))
        )
        if block_table:
            cache = PagedKV(*caches, table, lengths + tokens)
            assert torch.equal(cache.of_request(b)[0], keys)
        else:
            assert torch.equal(caches[0][b, : n + tokens], keys)
        close(out[b], q[b], keys, values, lse=lse[b].T, **mask)
    how["cache_seqlens"] = lengths + tokens
    again = flash_attn.flash_attn_with_kvcache(q, *caches, **how)
    for b, n in enumerate(how["cache_seqlens"].tolist()):
        keys = caches[0][b, :n] if not block_table else cache.of_request(b)[0]
        values = caches[1][b, :n] if not block_table else cache.of_request(b)[1]
        close(again[b], q[b], keys, values, **mask)


@pytest.mark.parametrize("how", [{}, {"causal": True}, {"window_size": (4, 1)}])
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_cache_gets_rotated_keys(how, interleaved):
    q, k, v, lengths = Q[:, :3], K[:, :3], V[:, :3], torch.tensor([17, 9], dtype=torch.int32)
    tables, places = normal(2, 20, 16), lengths[:, None] + torch.arange(3)
    caches, plain = ([K.clone(), V.clone()] for _ in "ab")
    how = how | {"cache_seqlens": lengths}
    given = (q, *caches, k, v, *tables)
    out = flash_attn.flash_attn_with_kvcache(*given, rotary_interleaved=interleaved, **how)
    of_q = places if len(how) > 1 else lengths[:, None].expand(2, 3)
    q, k = (
        rotated(x.flatten(0, 1), *tables, at.flatten(), interleaved).half().view_as(x)
        for x, at in ((q, of_q), (k, places))
    )
    assert torch.equal(flash_attn.flash_attn_with_kvcache(q, *plain, k, v, **how), out)
    assert all(map(torch.equal, caches, plain))


@pytest.mark.parametrize("keys", [40, 41, 300])
def test_contiguous_caches_of_any_length_are_taken_as_they_are(keys):
    whole = normal(3, keys + 8, 2, 2, 64)  # K and V side by side in a longer cache
    k_cache, v_cache = (whole[:, :keys, i] for i in (0, 1))
    q, rows = normal(2, 1, 4, 64), torch.tensor([2, 0], dtype=torch.int32)
    given = (q, k_cache, v_cache)
    how = {"cache_batch_idx": rows}
    out = flash_attn.flash_attn_with_kvcache(*given, cache_seqlens=keys - 1, **how)
    for b, row in enumerate(rows.tolist()):
        close(out[b], q[b], k_cache[row, :-1], v_cache[row, :-1])
    split = flash_attn.flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_batch_idx=rows, num_splits=2
    )
    for b, row in enumerate(rows.tolist()):
        close(split[b], q[b], k_cache[row], v_cache[row])
    shared = (x[:1].expand(2, -1, -1, -1) for x in given[1:])
    out = flash_attn.flash_attn_with_kvcache(q, *shared)
    for b in range(2):
        close(out[b], q[b], k_cache[0], v_cache[0])


def test_pages_of_ragged_queries():
    (k_pool, table), (v_pool, _) = paged(K[:, :16], 16), paged(V[:, :16], 16)
    q, lengths = normal(8, 4, 64), torch.tensor([0, 13, 29], dtype=torch.int32)
    given = (q, k_pool, v_pool, ENDS, lengths, 5, 16)
    out = flash_attn.flash_attn_varlen_func(*given, causal=True, block_table=table)
    for b, (rows, n) in enumerate(((slice(0, 3), 13), (slice(3, 8), 16))):
        close(out[rows], q[rows], K[b, :n], V[b, :n], causal=True)


VARIANTS = [
    ({"window_size": (5, 2)}, {"window_left": 5, "window_right": 2}),
    ({"window_size": (5, -1), "causal": True}, {"window_left": 5, "causal": True}),
    ({"window_size": (-1, 1)}, {"window_right": 1}),
    ({"softcap": 0.7, "causal": True}, {"soft_cap": 0.7, "causal": True}),
    ({"alibi_slopes": SLOPES, "causal": True}, {"alibi": SLOPES, "causal": True}),
    (
        {"alibi_slopes": SLOPES, "window_size": (4, 0)},
        {"alibi": SLOPES, "window_left": 4, **CAUSAL},
    ),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("theirs", "how"), VARIANTS)
def test_variants(theirs, how):
    out = flash_attn.flash_attn_func(Q, K, V, **theirs)
    theirs = theirs | {"return_softmax_lse": True}
    cached, lse = flash_attn.flash_attn_with_kvcache(Q, K, V, **theirs)
    last, _ = flash_attn.flash_attn_with_kvcache(Q[:, -1:], K, V, **theirs)
    for b in range(2):
        close(out[b], Q[b], K[b], V[b], **how)
        close(cached[b], Q[b], K[b], V[b], lse=lse[b].T, **how)
        close(last[b], Q[b, -1:], K[b], V[b], **how)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rotary_cos", normal(40, 32)),
        ("cache_leftpad", torch.zeros(2).int()),
        ("alibi_slopes", torch.ones(2, 4)),
    ],
)
def test_what_a_cache_cannot_have_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"^{name} = shape "):
        flash_attn.flash_attn_with_kvcache(Q[:, :1], K, V, **{name: value})


def test_refusals():
    with pytest.raises(ValueError, match=r"^dropout_p = 0.1, allowed: 0.0$"):
        flash_attn.flash_attn_qkvpacked_func(normal(1, 2, 3, 1, 64), 0.1)
    with pytest.raises(ValueError, match=r"^k.dtype = torch.float32"):
        flash_attn.flash_attn_func(Q.float(), K.float(), V.float())
    with pytest.raises(ValueError, match=r"^q.shape = \(12, 4, 64\), allowed: \[batch, "):
        flash_attn.flash_attn_func(Q[0], K, V)
    with pytest.raises(ValueError, match="allowed: causal=True"):
        flash_attn.flash_attn_func(Q, K, V, alibi_slopes=torch.ones(4))
    with pytest.raises(ValueError, match=r"^k.shape\[1\] = 2, allowed: 1, as q"):
        flash_attn.flash_attn_with_kvcache(Q[:, :1], K, V, K[:, :2], V[:, :2], cache_seqlens=3)
    for k_cache in (K[:, ::2], K[:, :1].expand(-1, 20, -1, -1)):
        with pytest.raises(ValueError, match=r"^k_cache.stride\(\) = .* allowed: requests "):
            flash_attn.flash_attn_with_kvcache(Q[:, :1], k_cache, V)


def test_the_next_versions_descales_of_codes():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in normal(3, 2, 40, 4, 128))
    halves = {f"{x}_descale": torch.full((2, 4), 0.5) for x in "kv"}
    how = {"softmax_scale": 0.1, "causal": True, "return_attn_probs": True}
    out, lse = interface.flash_attn_func(q, k, v, **halves, **how)
    plain, of_half = interface.flash_attn_func(q, k, v, **how | {"softmax_scale": 0.05})
    assert torch.equal(out, plain / 2)
    assert torch.equal(lse, of_half)
    wide = interface.flash_attn_func(q.half(), k.half(), v.half(), **how)
    expected = flash_attn.flash_attn_func(q.half(), k.half(), v.half(), **how)
    assert all(torch.equal(x, y) for x, y in zip(wide, expected[:2], strict=True))
    with pytest.raises(
        ValueError, match=r"^k_descale = shape \(2, 4\), allowed: None, with q in t"
    ):
        interface.flash_attn_func(q.half(), k.half(), v.half(), **halves)
    with pytest.raises(ValueError, match=r"^window_size, softcap = .*allowed: none, with q in 8"):
        interface.flash_attn_func(q, k, v, softcap=2.0)


def test_the_next_versions_ragged_codes_and_numbers():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in (normal(8, n, 128) for n in (4, 2, 2)))
    given, how = (ENDS, ENDS, 5, 5), {"causal": True, "return_attn_probs": True}
    halves = {f"{x}_descale": torch.full((2, 2), 0.5) for x in "qkv"}
    out, lse = interface.flash_attn_varlen_func(q, k, v, *given, **halves, **how)
    assert lse.shape == (4, 8)
    for r, rows in enumerate((slice(0, 3), slice(3, 8))):
        each = (x[None, rows] for x in (q, k, v))
        of_request = {name: x[r : r + 1] for name, x in halves.items()}
        alone, of_alone = interface.flash_attn_func(*each, **of_request, **how)
        assert torch.equal(out[rows], alone[0])
        assert torch.equal(lse[:, rows], of_alone[0])
    wide = tuple(x.half() for x in (q, k, v))
    found = interface.flash_attn_varlen_func(*wide, *given, **how)
    expected = flash_attn.flash_attn_varlen_func(*wide, *given, **how)
    assert all(map(torch.equal, found, expected[:2]))
    with pytest.raises(
        ValueError, match=r"^q_descale = shape \(2, 2\), allowed: None, with q in t"
    ):
        interface.flash_attn_varlen_func(*wide, *given, **halves)
    for name, value in (("seqused_k", ENDS), ("window_size, softcap", 2.0)):
        asked = {name.split()[-1]: value}
        with pytest.raises(ValueError, match=f"^{name} = .*allowed: "):
            interface.flash_attn_varlen_func(q, k, v, *given, **asked)


def test_the_next_versions_descales_of_a_cache():
    q, pool = normal(2, 1, 8, 64), normal(4, 16, 2, 64).to(torch.float8_e4m3fn)
    table, lengths = torch.tensor([[2, 0], [1, 3]]).int(), torch.tensor([20, 9]).int()
    of = {"cache_seqlens": lengths, "page_table": table, "return_softmax_lse": True}
    half = torch.tensor([0.5, 2.0]).expand(2, 2)
    found = interface.flash_attn_with_kvcache(q, pool, pool, **of, k_descale=half, v_descale=half)
    cache = labkernels.QuantizedKV(pool, pool, table, lengths, half[0], half[0])
    step = labkernels.decode(q[:, 0], cache)
    assert torch.equal(found[0][:, 0], step.out)
    assert torch.allclose(found[1][:, :, 0], step.lse2 * math.log(2))
    codes, two = q.to(pool.dtype), torch.tensor([2.0, 2.0]).expand(2, 2)
    how = {"q_descale": two, "k_descale": (half[0] / 2).expand(2, 2), "v_descale": half}
    narrow = interface.flash_attn_with_kvcache(codes, pool, pool, **of, **how)[0]
    assert torch.equal(narrow[:, 0], labkernels.decode(codes[:, 0].bfloat16(), cache).out)
    with pytest.raises(ValueError, match=r"^q_descale = .*allowed: None, with q in torch.float16"):
        interface.flash_attn_with_kvcache(q, pool, pool, **of, q_descale=half)
    with pytest.raises(ValueError, match="no k, rotary_cos, cache_batch_idx$"):
        interface.flash_attn_with_kvcache(q, pool, pool, **of, cache_batch_idx=lengths)
    with pytest.raises(
        ValueError, match=r"^v_descale = shape \(2, 2\), allowed: \[batch, kv_heads"
    ):
        interface.flash_attn_with_kvcache(q, pool, pool, **of, v_descale=torch.ones(2, 2))
    with pytest.raises(
        ValueError, match=r"^k_cache.dtype = torch.float8_e4m3fn, allowed: fp16, bf"
    ):
        interface.flash_attn_with_kvcache(q, pool, pool, cache_seqlens=lengths)
    wide = interface.flash_attn_with_kvcache(q, pool.half(), pool.half(), **of)
    for x, y in zip(wide, found, strict=True):
        assert x.shape == y.shape
