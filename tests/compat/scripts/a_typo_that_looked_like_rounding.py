"""The script of the case "A typo that looked like rounding", small, and on a CPU."""

import flashinfer
import torch

device = "cpu"


def reference(q_nope, q_pe, ckv, kpe, batch_size, causal, sm_scale):
    q = torch.cat([q_nope, q_pe], dim=-1).float().unflatten(0, (batch_size, -1))
    k = torch.cat([ckv, kpe], dim=-1).float()
    logits = torch.einsum("bmhd,bnd->bhmn", q, k) * sm_scale
    if causal:
        qo_len, kv_len = q.shape[1], k.shape[1]
        mask = torch.arange(kv_len - qo_len, kv_len)[:, None] >= torch.arange(kv_len)
        logits = logits.masked_fill(~mask.to(device), float("-inf"))
    return torch.einsum("bhmn,bnd->bmhd", torch.softmax(logits, -1), ckv.float()).flatten(0, 1)


def test_batch_mla_page_attention(
    batch_size, kv_len, qo_len, num_heads, causal, page_size, backend, dtype
):
    torch.manual_seed(42)
    head_dim_ckv, head_dim_kpe = 512, 64
    pages_num = -(-kv_len // page_size)
    q_nope = torch.randn(batch_size * qo_len, num_heads, head_dim_ckv, dtype=dtype, device=device)
    q_pe = torch.randn(batch_size * qo_len, num_heads, head_dim_kpe, dtype=dtype, device=device)
    ckv = torch.randn(batch_size * pages_num, page_size, head_dim_ckv, dtype=dtype, device=device)
    kpe = torch.randn(batch_size * pages_num, page_size, head_dim_kpe, dtype=dtype, device=device)
    sm_scale = 1.0 / ((128 + 64) ** 0.5)
    workspace_buffer = torch.empty(128 * 1024 * 1024, dtype=torch.int8, device=device)
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace_buffer, backend=backend)
    q_indptr = torch.arange(0, batch_size + 1, device=device).int() * qo_len
    kv_indptr = torch.arange(0, batch_size + 1, device=device).int() * pages_num
    kv_indices = torch.arange(0, batch_size * pages_num, device=device).int()
    kv_lens = torch.full((batch_size,), kv_len, dtype=torch.int32, device=device)
    wrapper.plan(
        q_indptr,
        kv_indptr,
        kv_indices,
        kv_lens,
        num_heads,
        head_dim_ckv,
        head_dim_kpe,
        page_size,
        causal,
        sm_scale,
        q_nope.dtype,
        ckv.dtype,
    )
    o = wrapper.run(q_nope, q_pe, ckv, kpe, return_lse=False)
    rows = (x.view(batch_size, -1, x.shape[-1])[:, :kv_len] for x in (ckv, kpe))
    o_ref = reference(q_nope, q_pe, *rows, batch_size, causal, sm_scale)
    torch.testing.assert_close(o.float(), o_ref, rtol=1e-3, atol=1e-3)


for causal, page_size in ((False, 1), (True, 16)):
    test_batch_mla_page_attention(2, 49, 3, 16, causal, page_size, "fa2", torch.half)
