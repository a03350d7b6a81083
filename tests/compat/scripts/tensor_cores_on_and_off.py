"""The script of the case "Tensor cores on and off", small, and on a CPU."""

import flashinfer
import torch

torch.manual_seed(42)
bs, cl = 3, 200
num_heads, num_kv_heads, head_dim, block_size = 32, 8, 128, 16
device = "cpu"

blocks = (cl + block_size - 1) // block_size
kv_indptr = torch.arange(bs + 1, dtype=torch.int32, device=device) * blocks
kv_indices = torch.randperm(bs * blocks, device=device).int()
kv_last_page_len = torch.full((bs,), (cl - 1) % block_size + 1, dtype=torch.int32, device=device)
q = torch.randn(bs, num_heads, head_dim, device=device).half()
kv_data = torch.randn(bs * blocks, 2, block_size, num_kv_heads, head_dim, device=device).half()


def run(use_tensor_cores):
    workspace_buffer = torch.empty(128 * 1024 * 1024, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace_buffer, "NHD", use_tensor_cores=use_tensor_cores
    )
    wrapper.plan(
        kv_indptr,
        kv_indices,
        kv_last_page_len,
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        pos_encoding_mode="NONE",
        data_type=torch.float16,
    )
    return wrapper.run(q, kv_data)


out_tc, out_no_tc = run(True), run(False)
difference = (out_tc - out_no_tc).abs()
relative = difference / out_no_tc.abs()
print("Outputs match:", torch.equal(out_tc, out_no_tc))
print("max rel diff:", relative.max().item(), "mean rel diff:", relative.mean().item())
