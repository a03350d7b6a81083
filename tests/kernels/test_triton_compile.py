"""Without a GPU, the Triton kernels compile with tensor cores on and off, and nothing spills."""

import pytest

from labkernels import hardware
from labkernels.cuda.compiler import sass, triton
from labkernels.cuda.compiler.triton import TritonVariant, compile_triton
from labkernels.policy import CUDA_CORES, TENSOR_CORES
from tests.kernels.backward.cases import BACKWARDS
from tests.kernels.contract import DECODERS, MLAS, PREFILLS

DECODE, PREFILL = DECODERS["triton_decode"], PREFILLS["triton_prefill"]
MLA, BACKWARD = MLAS["triton_mla"], BACKWARDS["triton_backward"]
STATES = dict.fromkeys(("lse2", "partial_o", "partial_m", "partial_l"), "*fp32")
DECODE_STRIDES = tuple(
    f"{name}_stride_{part}"
    for name, parts in (("q", ("batch", "head")), ("kv", ("page", "token", "head")))
    for part in parts
)
DECODE_TYPES = {
    **dict.fromkeys(("q", "k_pool", "v_pool", "out"), "*bf16"),
    **dict.fromkeys(("page_table", "kv_len"), "*i32"),
    **STATES,
    **dict.fromkeys(DECODE_STRIDES, "i32"),
    **dict.fromkeys(("page_table_stride", "page_size", "q_heads", "group"), "i32"),
    **dict.fromkeys(("keys_per_split", "splits"), "i32"),
    "scale_log2": "fp32",
}
PREFILL_STRIDES = (
    *("q_stride_token", "q_stride_head", "k_stride_page", "k_stride_token", "k_stride_head"),
    *("v_stride_page", "v_stride_token", "v_stride_head"),
)
PREFILL_TYPES = {
    **dict.fromkeys(("q", "k", "v", "out"), "*bf16"),
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "page_table", "kv_len", "work"), "*i32"),
    **STATES,
    **dict.fromkeys(PREFILL_STRIDES, "i32"),
    **dict.fromkeys(("page_table_stride", "page_size", "page_shift", "q_heads"), "i32"),
    **dict.fromkeys(("keys_per_split", "splits"), "i32"),
    "page_inverse": "i64",
    "scale_log2": "fp32",
}
MLA_STRIDES = tuple(
    f"{name}_stride_{part}"
    for name, parts in (
        *((q, ("token", "head")) for q in ("q_nope", "q_pe")),
        *((pool, ("page", "token")) for pool in ("ckv", "kpe")),
    )
    for part in parts
)
MLA_TYPES = {
    **dict.fromkeys(("q_nope", "q_pe", "ckv", "kpe", "out"), "*bf16"),
    **dict.fromkeys(("cu_seqlens_q", "page_table", "kv_len", "work"), "*i32"),
    **STATES,
    **dict.fromkeys(MLA_STRIDES, "i32"),
    **dict.fromkeys(("page_table_stride", "page_size", "q_heads"), "i32"),
    **dict.fromkeys(("keys_per_split", "splits"), "i32"),
    "scale_log2": "fp32",
}
BACKWARD_STRIDES = tuple(
    f"{name}_stride_{part}" for name in ("q", "k", "v", "dout") for part in ("token", "head")
)
BACKWARD_TYPES = {
    **dict.fromkeys(("q", "k", "v", "dout"), "*bf16"),
    **dict.fromkeys(("lse2", "row_delta"), "*fp32"),
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "work"), "*i32"),
    **dict.fromkeys(BACKWARD_STRIDES, "i32"),
    "q_heads": "i32",
    **dict.fromkeys(("scale", "scale_log2"), "fp32"),
}
BACKWARD_OUTPUTS = {"keys": ("dk", "dv"), "rows": ("dq",)}  # of either walk


def decodes(policy):
    """Yield every tile of 128 channels and the preferred others for an H200, and one for an A10."""
    for head_dim in DECODE.head_dims:
        tiles = DECODE.tiles(DECODE.shape(head_dim=head_dim, group=DECODE.rows(4)), policy)
        for tile in tiles if head_dim == 128 else tiles[:1]:
            yield (
                "h200",
                head_dim,
                tile,
                DECODE.rows(4),
                decode_variant("h200", policy, head_dim, tile),
            )
    # the widest, in 99 KiB of shared memory
    yield (
        "a10",
        head_dim,
        tiles[0],
        DECODE.rows(4),
        decode_variant("a10", policy, head_dim, tiles[0]),
    )


def decode_variant(gpu, policy, head_dim, tile):
    constants = {
        "D": head_dim,
        "ROWS": DECODE.rows(4),
        "KEYS": tile.keys,
        "TENSOR_CORES": policy.tensor_cores,
        "UPCAST": False,
        "SPLIT": True,
    }
    whole = (*DECODE_STRIDES, "page_size")
    return variant(DECODE, gpu, tile, DECODE_TYPES, constants, whole)


def prefills(policy):
    """Yield every tile for an H200, with ragged and paged, split and unsplit variants in turn."""
    for turn, head_dim in enumerate(PREFILL.head_dims, start=policy.tensor_cores):
        for i, tile in enumerate(PREFILL.tiles(PREFILL.shape(head_dim=head_dim), policy)):
            kv = PREFILL.layouts[(turn + i) % len(PREFILL.layouts)]
            split = (kv == "paged") == (i == 0)
            made = prefill_variant(policy, head_dim, tile, kv=kv, split=split)
            yield "h200", head_dim, tile, tile.q_rows, made


def prefill_variant(policy, head_dim, tile, *, kv, split):
    main = head_dim if head_dim != 192 else 128
    constants = {
        "group": 4,
        "D": main,
        "D_TAIL": head_dim - main,
        "D_V": main,
        "ROWS": tile.q_rows,
        "KEYS": tile.keys,
        "CAUSAL": True,
        "PAGED": kv == "paged",
        "EQUAL_STRIDES": head_dim == main,
        "TENSOR_CORES": policy.tensor_cores,
        "UPCAST": False,
        "SPLIT": split,
    }
    chunks = [name for name in PREFILL_STRIDES if name[0] in "kv" and not name.endswith("_head")]
    whole = set(PREFILL_STRIDES) - set(chunks if kv == "paged" else ())
    return variant(PREFILL, "h200", tile, PREFILL_TYPES, constants, whole)


def mlas(policy):
    """Yield every tile for an H200, the first one split."""
    for i, tile in enumerate(MLA.tiles(MLA.shape(head_dim=576), policy)):
        constants = {
            "group": 16,
            "D": 512,
            "D_PE": 64,
            "ROWS": tile.q_rows,
            "KEYS": tile.keys,
            "CAUSAL": True,
            "TENSOR_CORES": policy.tensor_cores,
            "UPCAST": False,
            "SPLIT": i == 0,
        }
        whole = (*MLA_STRIDES, "page_size")
        made = variant(MLA, "h200", tile, MLA_TYPES, constants, whole)
        yield "h200", 576, tile, tile.q_rows, made


def backwards(policy):
    """Yield every tile for an H200, in either walk."""
    for head_dim in BACKWARD.head_dims:
        for tile in BACKWARD.tiles(BACKWARD.shape(head_dim=head_dim, rows=1), policy):
            for walk in BACKWARD_OUTPUTS:
                yield (
                    "h200",
                    head_dim,
                    tile,
                    tile.q_rows,
                    backward_variant(policy, head_dim, tile, walk),
                )


def backward_variant(policy, head_dim, tile, walk):
    on = policy.tensor_cores
    constants = {
        "group": 4,
        "D": head_dim,
        "ROWS": tile.q_rows,
        "KEYS": tile.keys,
        "CAUSAL": True,
        "TENSOR_CORES": on,
        "UPCAST": False,
    }
    types = BACKWARD_TYPES | dict.fromkeys(BACKWARD_OUTPUTS[walk], "*bf16")
    return variant(BACKWARD, "h200", tile, types, constants, BACKWARD_STRIDES, function=walk)


def variant(spec, gpu, tile, types, constants, multiples_of_16, *, function=None):
    return TritonVariant(
        source=spec.folder / "kernel.py",
        function=function or spec.operation,
        types=types,
        constants=constants,
        arch=hardware.gpu(gpu).compile_arch,
        warps=tile.warps,
        stages=tile.stages,
        multiples_of_16=tuple(multiples_of_16),
    )


@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["first tile", "every tile"]
)
@pytest.mark.parametrize(
    "listed",
    [decodes, prefills, mlas, backwards],
    ids=["decode", "prefill", "mla", "backward"],
)
@pytest.mark.parametrize("policy", [TENSOR_CORES, CUDA_CORES], ids=["on", "off"])
def test_tensor_cores_are_in_the_machine_code_or_not(listed, policy, every):
    reason = triton.available()
    if reason is not None:
        pytest.skip(reason)
    wanted = list(listed(policy))[: None if every else 1]
    compiled = compile_triton([item[-1] for item in wanted])
    for (gpu, head_dim, tile, rows, made), found in zip(wanted, compiled, strict=True):
        where = f"{gpu}, head_dim {head_dim}, tile {tile.label}, {made.constants}"
        mix = sass.instruction_mix(found.cubin, symbol=made.function)
        on = made.constants["TENSOR_CORES"]
        assert any("MMA" in name for name in mix) == on, where
        assert found.stack_bytes == 0, f"{where}: spills"
        assert found.smem_bytes <= hardware.gpu(gpu).smem_per_block_max_bytes, where
        if not on:
            # S and O: an FMA for each row, key and channel
            channels = made.constants["D"]
            assert mix["FFMA"] >= 2 * rows * tile.keys * channels // tile.threads, where
