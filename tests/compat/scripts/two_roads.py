"""The script of the case "Two roads to the same token", small, and on a CPU."""

import torch
from flash_attn import flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache

torch.manual_seed(0)
batch_size, num_heads, head_dim, max_len, new_tokens = 4, 4, 64, 160, 2
device = "cpu"

lengths = torch.tensor([130, 7, 64, 99], dtype=torch.int32, device=device)
full = lengths + new_tokens
cu_seqlens = torch.nn.functional.pad(full.cumsum(0), (1, 0)).int()
with torch.autocast(device, dtype=torch.bfloat16):
    qkv = torch.randn(int(full.sum()), 3, num_heads, head_dim, device=device).bfloat16()

    reference = flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, int(full.max()), causal=True)
    ref_result_last = reference[cu_seqlens[1:].long() - 1]

    k_cache = torch.zeros(batch_size, max_len, num_heads, head_dim, device=device).bfloat16()
    v_cache = torch.zeros_like(k_cache)
    cache_seqlens = lengths.clone()
    for b in range(batch_size):
        start, length = cu_seqlens[b], lengths[b]
        k_cache[b, :length] = qkv[start : start + length, 1]
        v_cache[b, :length] = qkv[start : start + length, 2]
    for step in range(new_tokens):
        rows = cu_seqlens[:-1].long() + lengths + step
        q, k, v = qkv[rows].unsqueeze(1).unbind(2)
        cache_result = flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens, causal=True
        )
        cache_seqlens += 1

cache_result = cache_result.squeeze(1)
difference = (ref_result_last - cache_result).abs()
print("mean:", difference.mean().item(), "max:", difference.max().item())
