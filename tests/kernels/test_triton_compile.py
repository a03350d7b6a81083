"""triton_decode as machine code, with no GPU: tensor cores on and off, and nothing spills."""

import pytest

from labkernels import hardware
from labkernels.cuda import sass, triton_compile
from labkernels.cuda.cache import cache_dir
from labkernels.cuda.triton_compile import TritonVariant, compile_triton
from labkernels.kernels.spec import CUDA_CORES, TENSOR_CORES
from tests.kernels.contract import DECODERS

SPEC = DECODERS["triton_decode"]
POINTERS = {
    **dict.fromkeys(("q", "k_pool", "v_pool", "out"), "*bf16"),
    **dict.fromkeys(("page_table", "kv_len"), "*i32"),
    **dict.fromkeys(("lse2", "partial_o", "partial_m", "partial_l"), "*fp32"),
}
STRIDES = ("q_stride_batch", "q_stride_head", "kv_stride_page", "kv_stride_token", "kv_stride_head")
COUNTS = ("page_table_stride", "page_size", "q_heads", "group", "keys_per_split", "splits")
TYPES = POINTERS | dict.fromkeys((*STRIDES, *COUNTS), "i32") | {"scale_log2": "fp32"}


def variants():
    """On an H200 every tile of 128 channels and the preferred ones of others; one on an A10."""
    for policy in (TENSOR_CORES, CUDA_CORES):
        for head_dim in SPEC.head_dims:
            tiles = SPEC.tiles(head_dim, SPEC.rows(4), policy)
            chosen = tiles if head_dim == 128 else tiles[:1]
            yield from (("h200", policy, head_dim, tile) for tile in chosen)
        yield "a10", policy, head_dim, tiles[0]  # the widest, in 99 KiB of shared memory


def variant(gpu, policy, head_dim, tile):
    constants = {
        "D": head_dim,
        "ROWS": SPEC.rows(4),
        "KEYS": tile.keys,
        "TENSOR_CORES": SPEC.uses_tensor_cores(policy),
        "UPCAST": False,
        "SPLIT": True,
    }
    return TritonVariant(
        source=SPEC.folder / "kernel.py",
        function="decode",
        types=TYPES,
        constants=constants,
        arch=hardware.gpu(gpu).compile_arch,
        warps=tile.warps,
        stages=tile.stages,
        multiples_of_16=(*STRIDES, "page_size"),
    )


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_tensor_cores_are_in_the_machine_code_or_not(on, monkeypatch):
    reason = triton_compile.available()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache_dir() / "triton"))
    wanted = [case for case in variants() if SPEC.uses_tensor_cores(case[1]) == on]
    for case, compiled in zip(
        wanted, compile_triton([variant(*case) for case in wanted]), strict=True
    ):
        gpu, _, head_dim, tile = case
        where = f"{gpu}, head_dim {head_dim}, tile {tile.label}"
        mix = sass.instruction_mix(compiled.cubin, symbol="decode")
        assert any("MMA" in name for name in mix) == on, where
        assert compiled.stack_bytes == 0, f"{where}: spills"
        assert compiled.smem_bytes <= hardware.gpu(gpu).smem_per_block_max_bytes, where
        if not on:
            # S and O: an FMA for each of 16 rows, a key and a channel
            assert mix["FFMA"] >= 2 * 16 * tile.keys * head_dim // tile.threads, where
