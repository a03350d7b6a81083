"""The script of the case "The test that could not fail", small, and on a CPU."""

import flashinfer
import torch

device = "cpu"


def attention_ref(batch_size, q, k, v, causal, sm_scale):
    qo_len, kv_len = q.shape[0] // batch_size, k.shape[0] // batch_size
    num_heads = q.shape[1]
    rows = (x.view(batch_size, -1, num_heads, x.shape[-1]).float() for x in (q, k, v))
    q, k, v = rows
    logits = torch.einsum("bmhd,bnhd->bhmn", q, k) * sm_scale
    if causal:
        mask = torch.arange(kv_len - qo_len, kv_len)[:, None] >= torch.arange(kv_len)
        logits = logits.masked_fill(~mask.to(device), float("-inf"))
    out = torch.einsum("bhmn,bnhd->bmhd", torch.softmax(logits, dim=-1), v)
    return out.flatten(0, 1), torch.logsumexp(logits, -1).transpose(-1, -2).flatten(0, 1)


def test_batch_prefill_with_ragged_kv_cache(
    batch_size, kv_len, qo_len, num_heads, causal, backend, dtype, keys
):
    torch.manual_seed(42)
    kv_layout, head_dim_qk, head_dim_vo = "NHD", 192, 128
    q = torch.randn(batch_size * qo_len, num_heads, head_dim_qk, dtype=dtype, device=device)
    k = keys(batch_size * kv_len, num_heads, head_dim_qk, dtype=dtype, device=device)
    v = torch.randn(batch_size * kv_len, num_heads, head_dim_vo, dtype=dtype, device=device)
    qo_indptr = torch.arange(0, batch_size + 1, device=device).int() * qo_len
    kv_indptr = torch.arange(0, batch_size + 1, device=device).int() * kv_len
    workspace_buffer = torch.empty(128 * 1024 * 1024, dtype=torch.int8, device=device)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
        workspace_buffer, kv_layout, backend=backend
    )
    wrapper.plan(
        qo_indptr,
        kv_indptr,
        num_heads,
        num_heads,
        head_dim_qk,
        head_dim_vo=head_dim_vo,
        causal=causal,
        q_data_type=dtype,
        kv_data_type=dtype,
    )
    o, lse = wrapper.run_return_lse(q, k, v)
    sm_scale = 1.0 / (head_dim_qk**0.5)
    o_ref, lse_ref = attention_ref(batch_size, q, k, v, causal, sm_scale)
    lse_ref = lse_ref / torch.log(torch.tensor(2.0))
    torch.testing.assert_close(o.float(), o_ref, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(lse, lse_ref, rtol=1e-3, atol=1e-3)


for backend in ("fa2", "fa3"):
    for causal in (False, True):
        test_batch_prefill_with_ragged_kv_cache(
            2, 54, 37, 2, causal, backend, torch.half, torch.zeros
        )
