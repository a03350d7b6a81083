"""The script of the case "Half-idle tensor cores", small, and on a CPU."""

import time

import torch
from flash_attn import flash_attn_func

torch.manual_seed(0)
batch_size, seqlen, num_heads, head_size = 1, 128, 2, 64
device = "cpu"
q, k, v = torch.randn(3, batch_size, seqlen, num_heads, head_size, device=device).half()

out = flash_attn_func(q, k, v)
start = time.perf_counter()
repeats = 2
for _ in range(repeats):
    out = flash_attn_func(q, k, v)
seconds = (time.perf_counter() - start) / repeats
tflop = 4 * batch_size * seqlen**2 * num_heads * head_size / 1e12
print(f"{tflop / seconds} TFLOP/s")
