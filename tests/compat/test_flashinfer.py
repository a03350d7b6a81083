"""FlashInfer's wrappers give attention within the lab's bound, in FlashInfer's conventions."""

import math

import numpy as np
import pytest
import torch

from labkernels import LatentKV, PagedKV
from labkernels.compat import flashinfer
from labkernels.measure.peers.flashinfer import page_lists
from tests.compat.judged import close, normal

WORKSPACE = torch.empty(0)
LENS = torch.tensor([20, 33, 1], dtype=torch.int32)
TABLE = torch.tensor([[4, 1, 0], [5, 0, 2], [3, 0, 0]], dtype=torch.int32)
POOL = normal(6, 2, 16, 2, 64)
CACHE = PagedKV(POOL[:, 0], POOL[:, 1], TABLE, LENS)
LISTS = page_lists(CACHE)
LN2 = math.log(2)


def pool_as(kv_layout, kind):
    """Return the pool in a layout, as one tensor or as two."""
    pool = POOL if kv_layout == "NHD" else POOL.transpose(2, 3).contiguous()
    return pool if kind is torch.Tensor else tuple(pool.unbind(1))


def ran(monkeypatch, module, verb):
    """Return a list to which each call of a verb adds the kernel that it ran."""
    found, call = [], getattr(module, verb)

    def noted(*given, **how):
        step = call(*given, **how)
        found.append(step.plan.kernel)
        return step

    monkeypatch.setattr(module, verb, noted)
    return found


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
@pytest.mark.parametrize("kind", [torch.Tensor, tuple])
@pytest.mark.parametrize("use_tensor_cores", [False, True])
def test_decode(kv_layout, kind, use_tensor_cores, monkeypatch):
    kernels = ran(monkeypatch, flashinfer.decode, "decode")
    q = normal(3, 8, 64)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        WORKSPACE, kv_layout, use_tensor_cores=use_tensor_cores
    )
    wrapper.plan(*LISTS, 8, 2, 64, 16, sm_scale=0.1, q_data_type=torch.float16)
    given = torch.empty_like(q), torch.empty(3, 8)
    pool = pool_as(kv_layout, kind)
    out, lse = wrapper.run_return_lse(q, pool, out=given[0], lse=given[1])
    assert (out.data_ptr(), lse.data_ptr()) == (given[0].data_ptr(), given[1].data_ptr())
    assert kernels == ["decode_mma" if use_tensor_cores else "decode_fma"]
    for b in range(3):
        k, v = CACHE.of_request(b)
        close(out[b][None], q[b][None], k, v, lse2=lse[b][None], scale=0.1)
    assert torch.equal(wrapper.run(q, pool), out)
    if kind is tuple:  # a negation that torch has put off is carried out
        put_off = tuple(torch._neg_view(-x) for x in pool)
        assert torch.equal(wrapper.run(q, put_off), out)


@pytest.mark.parametrize(
    ("how", "keys"), [({"fixed_split_size": 2}, 32), ({"disable_split_kv": True}, 48), ({}, None)]
)
def test_splits_of_a_decode_are_told_in_pages(how, keys, monkeypatch):
    asked = []
    decode = flashinfer.decode.decode

    def noted(*given, **options):
        asked.append(options["keys_per_split"])
        return decode(*given, **options)

    monkeypatch.setattr(flashinfer.decode, "decode", noted)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.plan(*LISTS, 8, 2, 64, 16, data_type="float16", **how)
    wrapper.run(normal(3, 8, 64), POOL)
    assert asked == [keys]


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_paged_prefill(kv_layout, is_causal):
    tokens = torch.tensor([0, 3, 8, 9], dtype=torch.int32)
    q = normal(9, 8, 64)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, kv_layout)
    wrapper.plan(tokens, *LISTS, 8, 2, 64, 16, causal=is_causal)
    pool = pool_as(kv_layout, torch.Tensor)
    out, lse = wrapper.run_return_lse(q, pool)
    for b in range(3):
        rows = slice(*tokens[b : b + 2].tolist())
        k, v = CACHE.of_request(b)
        close(out[rows], q[rows], k, v, lse2=lse[rows], causal=is_causal)
    turned = torch.empty(8, 9)
    _, found = wrapper.run(q, pool, return_lse=True, lse=turned, lse_base="ln", lse_layout="HN")
    assert found is turned
    assert torch.equal(turned, (lse * LN2).T)


SINKS = torch.tensor([0.0, 3.0] * 4)
VARIANTS = [
    ({"window_left": 5}, {}, {"window_left": 5}),
    ({"logits_soft_cap": 0.7}, {}, {"soft_cap": 0.7}),
    ({}, {"sinks": SINKS}, {"sinks": SINKS}),
    ({"window_left": 5}, {"sinks": SINKS}, {"window_left": 5, "sinks": SINKS}),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("planned", "given", "how"), VARIANTS)
def test_variants(planned, given, how):
    tokens, q = torch.tensor([0, 3, 8, 9], dtype=torch.int32), normal(9, 8, 64)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.plan(tokens, *LISTS, 8, 2, 64, 16, causal=True, **planned)
    out, lse = wrapper.run_return_lse(q, POOL, **given)
    decoder = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    decoder.plan(*LISTS, 8, 2, 64, 16, **planned)
    last = tokens[1:].long() - 1
    decoded = decoder.run(q[last], POOL, **given)
    for b in range(3):
        rows = slice(*tokens[b : b + 2].tolist())
        k, v = CACHE.of_request(b)
        close(out[rows], q[rows], k, v, lse2=lse[rows], causal=True, **how)
        close(decoded[b][None], q[last[b]][None], k, v, causal=True, **how)


def test_a_window_of_one_run():
    q, tokens = normal(3, 8, 64), torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.plan(tokens, *LISTS, 8, 2, 64, 16, window_left=5)
    for how, wanted in (({"window_left": 9}, {"window_left": 9}), ({"window_left": -1}, {})):
        out = wrapper.run(q, POOL, **how)
        for b in range(3):
            close(out[b][None], q[b][None], *CACHE.of_request(b), **wanted)


def test_a_custom_mask_takes_the_place_of_causal():
    """FlashInfer packs each request's bits into bytes of its own, the lowest bit first."""
    tokens, q = torch.tensor([0, 3, 8, 9], dtype=torch.int32), normal(9, 8, 64)
    shapes = list(zip(tokens.diff().tolist(), LENS.tolist(), strict=True))
    masks = [torch.arange(n * keys).view(n, keys) % 7 % 3 > 0 for n, keys in shapes]
    flat = torch.cat([mask.flatten() for mask in masks])
    packed = np.concatenate([np.packbits(mask.numpy(), bitorder="little") for mask in masks])
    bits = torch.from_numpy(np.insert(packed, 0, 0))[1:]  # not at a multiple of 4 bytes
    outs = []
    for given in ({"custom_mask": flat}, {"custom_mask": flat[:1], "packed_custom_mask": bits}):
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
        wrapper.plan(tokens, *LISTS, 8, 2, 64, 16, causal=True, window_left=30, **given)
        outs.append(wrapper.run_return_lse(q, POOL))
    (out, lse), second = outs
    assert torch.equal(out, second[0])
    ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE)
    ends = torch.tensor([0, *LENS.cumsum(0)]).int()
    ragged.plan(tokens, ends, 8, 2, 64, causal=True, window_left=30, custom_mask=flat)
    k, v = (torch.cat(x) for x in zip(*map(CACHE.of_request, range(3)), strict=True))
    close_rows = ragged.run(q, k, v)
    for b in range(3):
        rows = slice(*tokens[b : b + 2].tolist())
        how = {"window_left": 30, "mask": masks[b]}
        k, v = CACHE.of_request(b)
        close(out[rows], q[rows], k, v, lse2=lse[rows], **how)
        close(close_rows[rows], q[rows], k, v, **how)
        single = flashinfer.single_prefill_with_kv_cache(
            q[rows], k, v, custom_mask=masks[b], window_left=30
        )
        close(single, q[rows], k, v, **how)


@pytest.mark.parametrize(
    ("backend", "kernel"), [("auto", None), ("fa2", "prefill_mma"), ("fa3", "prefill_wgmma")]
)
def test_ragged_prefill_of_two_head_dims(backend, kernel, monkeypatch):
    kernels = ran(monkeypatch, flashinfer.prefill, "prefill")
    ends, kv_ends = torch.tensor([0, 5, 8]).int(), torch.tensor([0, 9, 29]).int()
    q, k, v = normal(8, 2, 192), normal(29, 2, 192), normal(29, 2, 128)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, backend=backend)
    wrapper.plan(ends, kv_ends, 2, 2, 192, 128, causal=True, disable_split_kv=True)
    out = wrapper.run(q, k, v)
    assert kernel in (None, *kernels)
    for a, b in (((0, 5), (0, 9)), ((5, 8), (9, 29))):
        rows, keys = slice(*a), slice(*b)
        close(out[rows], q[rows], k[keys], v[keys], causal=True)


@pytest.mark.parametrize(("backend", "kernel"), [("fa2", "mla_mma"), ("fa3", "mla_wgmma")])
def test_mla(backend, kernel, monkeypatch):
    kernels = ran(monkeypatch, flashinfer.mla, "mla_decode")
    ckv, kpe = normal(6, 16, 576).split([512, 64], -1)
    tokens = torch.tensor([0, 2, 5, 6], dtype=torch.int32)
    q_nope, q_pe = normal(6, 16, 576).split([512, 64], -1)
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(WORKSPACE, backend=backend)
    lists = (*LISTS[:2], LENS)
    wrapper.plan(tokens, *lists, 16, 512, 64, 16, True, 0.1, q_nope.dtype, ckv.dtype)
    out, lse = wrapper.run(q_nope, q_pe, ckv, kpe, return_lse=True)
    natural = wrapper.run(q_nope, q_pe, ckv, kpe, return_lse=True, return_lse_base_on_e=True)[1]
    assert kernels == [kernel, kernel]
    assert torch.equal(natural, lse * LN2)
    cache = LatentKV(ckv, kpe, TABLE, LENS)
    for b in range(3):
        rows = slice(*tokens[b : b + 2].tolist())
        page, slot = cache.places(b)
        k = torch.cat([ckv[page, slot], kpe[page, slot]], -1)[:, None]
        q = torch.cat([q_nope[rows], q_pe[rows]], -1)
        close(out[rows], q, k, k[..., :512], lse2=lse[rows], causal=True, scale=0.1)


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
def test_one_request(kv_layout):
    q, k, v = normal(5, 8, 64), normal(41, 2, 64), normal(41, 2, 64).flip(0)
    laid = [x if kv_layout == "NHD" else x.transpose(0, 1).contiguous() for x in (k, v)]
    how = {"kv_layout": kv_layout, "return_lse": True}
    out, lse = flashinfer.single_prefill_with_kv_cache(q, *laid, causal=True, **how)
    close(out, q, k, v, lse2=lse, causal=True)
    for use_tensor_cores in (False, True):
        how["use_tensor_cores"] = use_tensor_cores
        out, lse = flashinfer.single_decode_with_kv_cache(q[4], *laid, **how)
        close(out[None], q[4:], k, v, lse2=lse[None])


def test_run_needs_the_tensors_of_its_plan():
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    with pytest.raises(ValueError, match="^run before plan"):
        wrapper.run(normal(3, 8, 64), POOL)
    wrapper.plan(*LISTS, 8, 2, 64, 16)
    with pytest.raises(ValueError, match=r"^q_data_type of plan = torch.float16, allowed: torch.b"):
        wrapper.run(normal(3, 8, 64).bfloat16(), POOL.bfloat16())
    with pytest.raises(ValueError, match="^num_qo_heads of plan = 8, allowed: 4"):
        wrapper.run(normal(3, 4, 64), POOL)
    with pytest.raises(ValueError, match="^window_left of plan = -1, allowed: 8"):
        wrapper.run(normal(3, 8, 64), POOL, window_left=8)
    with pytest.raises(ValueError, match=r"^paged_kv_cache.shape = \(2, 16, 2, 64\)"):
        wrapper.run(normal(3, 8, 64), POOL[0])


def test_a_cache_of_8_bits_has_scales():
    q, narrow = normal(3, 8, 64), POOL.to(torch.float8_e4m3fn)
    wide, scales = narrow.to(q.dtype), {"k_scale": 0.5, "v_scale": torch.tensor(4.0)}
    wrapper, plain = decode_wrapper(), decode_wrapper()
    wrapper.plan(*LISTS, 8, 2, 64, 16, kv_data_type="float8_e4m3fn", sm_scale=0.25)
    plain.plan(*LISTS, 8, 2, 64, 16, sm_scale=0.125)
    assert torch.equal(wrapper.run(q, narrow, **scales), 4 * plain.run(q, wide))
    with pytest.raises(
        ValueError, match="^paged_kv_cache.dtype = torch.float16, allowed: torch.fl"
    ):
        wrapper.run(q, wide)
    with pytest.raises(ValueError, match="^k_scale = 0.5, allowed: None, 1, with a cache in torch"):
        plain.run(q, wide, k_scale=0.5)
    with pytest.raises(
        ValueError, match=r"^v_scale = shape \(3,\), allowed: a number, or 2, the KV"
    ):
        wrapper.run(q, narrow, v_scale=torch.ones(3))


def decode_wrapper(**how):
    return flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, **how)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: decode_wrapper(use_cuda_graph=True), "use_cuda_graph = True, allowed: False"),
        (lambda: decode_wrapper(backend="trtllm-gen"), "backend = 'trtllm-gen', allowed: auto, "),
        (lambda: decode_wrapper(kv_layout="NDH"), "kv_layout = 'NDH', allowed: NHD, HND"),
        (
            lambda: decode_wrapper().plan(*LISTS, 8, 2, 64, 16, kv_data_type="bfloat16"),
            "kv_data_type = torch.bfloat16, allowed: torch.float16",
        ),
        (
            lambda: decode_wrapper().plan(*LISTS[:2], LENS[:2], 8, 2, 64, 16),
            r"len\(last_page_len\) = 2, allowed: 3",
        ),
        (
            lambda: decode_wrapper().plan(LISTS[0], LISTS[1][:-1], LISTS[2], 8, 2, 64, 16),
            r"indptr = \[0, 2, 5, 6\], allowed: 0 and numbers that ascend to at most 5, the ind",
        ),
        (
            lambda: flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE).plan(
                LISTS[0], LISTS[0], 8, 2, 64, custom_mask=torch.ones(4)
            ),
            r"custom_mask = shape \(4,\), allowed: 14 of torch.bool, each query's keys",
        ),
    ],
)
def test_what_is_not_served_is_refused_by_name(call, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        call()
