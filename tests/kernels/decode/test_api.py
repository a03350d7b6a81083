"""Decode verbs check arguments and make plans. test_contract.py tests what kernels compute."""

import math
import re

import pytest

torch = pytest.importorskip("torch")

from labkernels import (  # noqa: E402
    hardware,
    ops,
)
from labkernels.kernels.caches.paged import PagedKV  # noqa: E402
from labkernels.kernels.registry import discover  # noqa: E402
from labkernels.policy import CUDA_CORES, NumericPolicy  # noqa: E402
from tests.kernels.decode.cases import (  # noqa: E402
    bits,
    decode_case,
    poisoned,
)

KV_LENS = (33, 5)
HALF, INT = torch.float16, torch.int32


def parts(**changes):
    """Return the tensors of a PagedKV, and q; functions in `changes` replace those they name."""
    case = decode_case(KV_LENS)
    cache = case.cache
    tensors = {
        "q": case.q,
        "k": cache.k,
        "v": cache.v,
        "page_table": cache.page_table,
        "kv_len": cache.kv_len,
    }
    return tensors | {name: change(tensors[name].clone()) for name, change in changes.items()}


def set_item(tensor, index, value):
    tensor[index] = value
    return tensor


def misaligned(tensor):
    """Return the same values one element later in memory."""
    whole = torch.zeros(tensor.numel() + 8, dtype=tensor.dtype)
    moved = whole[1 : 1 + tensor.numel()].view(tensor.shape)
    return moved.copy_(tensor)


def gapped(tensor):
    """Return the same values with a stride of 2 in the last dimension."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def odd_rows(tensor):
    """Return the same values in rows whose length is no multiple of 16 bytes."""
    wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + 1, dtype=tensor.dtype)
    wide[..., :-1] = tensor
    return wide[..., :-1]


BAD_TENSORS = [
    ({"q": lambda x: x.float()}, "q.dtype = torch.float32, allowed: torch.float16, as k"),
    ({"q": lambda x: x.bfloat16()}, "q.dtype = torch.bfloat16, allowed: torch.float16, as k"),
    (
        {"k": lambda x: x.double()},
        "k.dtype = torch.float64, allowed: torch.float16, torch.bfloat16",
    ),
    ({"v": lambda x: x.bfloat16()}, "v.dtype = torch.bfloat16, allowed: torch.float16, as k"),
    ({"page_table": lambda x: x.long()}, "page_table.dtype = torch.int64, allowed: torch.int32"),
    ({"kv_len": lambda x: x.float()}, "kv_len.dtype = torch.float32, allowed: torch.int32"),
    ({"q": lambda x: x.to("meta")}, "q.device = meta, allowed: cpu, where k is"),
    ({"v": lambda x: x.to("meta")}, "v.device = meta, allowed: cpu, where k is"),
    ({"page_table": lambda x: x.to("meta")}, "page_table.device = meta, allowed: cpu"),
    ({"kv_len": lambda x: x.to("meta")}, "kv_len.device = meta, allowed: cpu"),
    ({"page_table": lambda x: set_item(x, (1, 0), 9)}, "page_table[1, 0] = 9, allowed: 0 to 8"),
    ({"page_table": lambda x: set_item(x, (0, 2), -1)}, "page_table[0, 2] = -1, allowed: 0 to 8"),
    ({"kv_len": lambda x: set_item(x, 1, -1)}, "kv_len[1] = -1, allowed: 0 to 64"),
    ({"kv_len": lambda x: set_item(x, 0, 65)}, "kv_len[0] = 65, allowed: 0 to 64"),
    ({"kv_len": lambda x: x[:1]}, "len(kv_len) = 1, allowed: 2, the rows of page_table"),
    ({"kv_len": lambda x: x[None]}, "kv_len.shape = (1, 2), allowed: 1 dimensions"),
    ({"kv_len": gapped}, "kv_len.stride() = (2,), allowed: last stride 1"),
    ({"page_table": lambda x: x[0]}, "page_table.shape = (4,), allowed: 2 dimensions"),
    ({"page_table": gapped}, "page_table.stride() = (8, 2), allowed: last stride 1"),
    ({"q": gapped}, "q.stride() = (1024, 128, 2), allowed: last stride 1"),
    ({"k": gapped}, "allowed: last stride 1 (a contiguous head_dim)"),
    ({"q": misaligned}, "q: address 0x"),
    ({"v": misaligned}, "v: address 0x"),
    ({"q": odd_rows}, "allowed: rows that start at multiples of 16 bytes"),
    ({"k": odd_rows}, "k: address 0x"),
    ({"q": lambda x: x[0]}, "q.shape = (8, 64), allowed: [batch, q_heads, head_dim]"),
    ({"q": lambda x: x[:1]}, "len(q) = 1, allowed: 2, the requests of the cache"),
    ({"q": lambda x: x[:, :7]}, "q.shape[1] = 7 query heads, allowed: a multiple of 2 KV heads"),
    ({"q": lambda x: x[:, :0]}, "q.shape[1] = 0 query heads, allowed: a multiple of 2 KV heads"),
    ({"q": lambda x: x[:, :, :32]}, "q.shape[2] = 32, allowed: 64, the head_dim of k"),
    ({"k": lambda x: x[0]}, "k.shape = (16, 2, 64), allowed: [pages, page_size, kv_heads"),
    ({"v": lambda x: x[1:]}, "v.shape = (8, 16, 2, 64), allowed: (9, 16, 2, 64), as k"),
]
TWO_POOLS = [
    (lambda x: x[:, :, :0], "k.shape[2] = 0 KV heads, allowed: 1 or more"),
    (lambda x: x[:, :0], "page_size = 0, allowed: 1 to 256"),
    (lambda x: x.repeat(1, 17, 1, 1), "page_size = 272, allowed: 1 to 256"),
]
BAD_OPTIONS = [
    ({"kernel": "decode"}, "kernel = 'decode', allowed: reference, decode_fma, "),
    ({"tile": "9x9x9x9"}, "tile = '9x9x9x9', allowed for decode_mma: 4x16x"),
    ({"kernel": "decode_fma", "policy": NumericPolicy()}, "allowed for decode_fma: p=fp32,"),
    ({"policy": CUDA_CORES}, "policy = p=fp32,denominator=unrounded,exp2=mufu,accumulate=fma"),
    ({"scale": 0.0}, "scale = 0.0, allowed: a positive number"),
    ({"scale": -1.0}, "scale = -1.0, allowed: a positive number"),
    ({"scale": math.nan}, "scale = nan, allowed: a positive number"),
    ({"scale": math.inf}, "scale = inf, allowed: a positive number"),
    ({"keys_per_split": 0}, "keys_per_split = 0, allowed: 1 to "),
    ({"keys_per_split": -5}, "keys_per_split = -5, allowed: 1 to "),
    ({"keys_per_split": 2**32 + 16}, "keys_per_split = 4294967312, allowed: 1 to "),
    ({"target": "h300"}, "target = 'h300', allowed: t4, a100, "),
]
BAD_OUTPUTS = [
    ("out", lambda x: x.float(), "out.dtype = torch.float32, allowed: torch.float16"),
    ("out", lambda x: x[:1], "out: shape (1, 8, 64)"),
    ("out", gapped, "allowed: (2, 8, 64), contiguous"),
    ("out", lambda x: x.to("meta"), "out.device = meta, allowed: cpu, where k is"),
    ("lse2", lambda x: x.double(), "lse2.dtype = torch.float64, allowed: torch.float32"),
    ("lse2", lambda x: x.t().contiguous(), "lse2: shape (8, 2)"),
    ("lse2", gapped, "allowed: (2, 8), contiguous"),
]


def refuse(tensors, message, **options):
    """Assert that the call raises with these words, and writes nothing."""
    case = decode_case(KV_LENS)
    outputs = poisoned(case)
    options = {"kernel": "decode_mma", "out": outputs.out, "lse2": outputs.lse2, **options}
    q = tensors.pop("q")
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.decode(q, PagedKV(**tensors), **options)
    assert all(whole.isnan().all() for whole in outputs.storage), "something was written"


@pytest.mark.parametrize(("changes", "message"), BAD_TENSORS, ids=[m for _, m in BAD_TENSORS])
def test_bad_tensor_is_named(changes, message):
    refuse(parts(**changes), message)


@pytest.mark.parametrize(("change", "message"), TWO_POOLS, ids=[m for _, m in TWO_POOLS])
def test_bad_pools_are_named(change, message):
    refuse(parts(k=change, v=change), message)


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=[m for _, m in BAD_OPTIONS])
def test_bad_option_is_named(options, message):
    refuse(parts(), message, **options)


def test_pools_of_unlike_strides_are_refused():
    k = decode_case(KV_LENS).cache.k
    v = torch.empty(9, 2, 16, 64, dtype=HALF).permute(0, 2, 1, 3)
    message = f"v.stride() = {v.stride()}, allowed: {k.stride()}, as k"
    refuse(parts(v=lambda _: v), message)


def test_tensors_without_memory_are_refused():
    on_meta = {name: (lambda x: x.to("meta")) for name in parts()}
    refuse(parts(**on_meta), "q.device = meta, allowed: cpu, cuda")


def test_a_batch_of_none_is_refused():
    nothing = {"q": lambda x: x[:0], "page_table": lambda x: x[:0], "kv_len": lambda x: x[:0]}
    refuse(parts(**nothing), "len(q) = 0 requests, allowed: 1 to 65535")


def test_unknown_head_dim_and_dtype_of_a_kernel_are_refused():
    narrow = lambda x: x[..., :32].contiguous()  # noqa: E731
    tensors = parts(q=narrow, k=narrow, v=narrow)
    case = decode_case(KV_LENS, head_dim=64)
    message = "head_dim = 32, allowed for decode_mma: 64, 128, 256"
    refuse(tensors, message, out=case.q[..., :32].contiguous() * math.nan)


@pytest.mark.parametrize(("name", "make", "message"), BAD_OUTPUTS, ids=[m for *_, m in BAD_OUTPUTS])
def test_bad_output_is_named_and_keeps_its_poison(name, make, message):
    outputs = poisoned(decode_case(KV_LENS))
    given = make(getattr(outputs, name))
    refuse(parts(), message, **{name: given})
    assert given.device.type == "meta" or given.isnan().all()


def test_more_splits_than_a_grid_has_are_refused():
    case = decode_case((5,))
    cache = case.cache
    table = cache.page_table[:, :1].expand(1, 4097).contiguous()
    wide = PagedKV(cache.k, cache.v, table, cache.kv_len)
    with pytest.raises(ValueError, match=r"keys_per_split = 1, allowed: at least 2 for 65552 keys"):
        ops.decode(case.q, wide, keys_per_split=1)


def test_more_keys_than_32_bits_count_are_refused():
    cache = decode_case((5,)).cache
    table = cache.page_table[:, :1].expand(1, 2**26 + 1)
    with pytest.raises(ValueError, match="page_table.stride"):
        PagedKV(cache.k, cache.v, table, cache.kv_len)
    table = torch.empty(1, 2**26 + 1, dtype=INT)
    with pytest.raises(ValueError, match=r"page_size = 1073741840, allowed: 0 to 1073741824"):
        PagedKV(cache.k, cache.v, table, cache.kv_len)


def test_defaults_are_the_preferred_kernel_and_a_fresh_output():
    for group, kernel in ((4, "decode_mma_n8"), (8, "decode_mma_n8"), (16, "decode_mma")):
        case = decode_case(KV_LENS, group=group)
        result = ops.decode(case.q, case.cache)
        assert result.plan.kernel == kernel
        assert result.out.shape == case.q.shape
        assert result.out.dtype == case.q.dtype
        assert result.lse2.dtype == torch.float32


def test_a_step_runs_again_with_other_lengths_and_pages():
    case = decode_case((40, 40))
    cache = case.cache
    moving = PagedKV(cache.k, cache.v, cache.page_table.clone(), cache.kv_len.clone())
    step = ops.decode_step(case.q, moving, keys_per_split=16)
    for lengths, order in (((40, 40), [0, 1]), ((3, 0), [1, 0]), ((17, 33), [0, 0])):
        moving.kv_len.copy_(torch.tensor(lengths))
        moving.page_table.copy_(cache.page_table[order])
        step.out.fill_(math.nan)
        step.run()
        fresh = ops.decode(case.q, moving, keys_per_split=16)
        assert torch.equal(bits(step.out), bits(fresh.out))
        assert torch.equal(bits(step.lse2), bits(fresh.lse2))


@pytest.mark.parametrize("key", hardware.GPUS)
def test_the_default_tile_fits_the_gpu_that_is_planned_for(key):
    gpu = hardware.gpu(key)
    for spec in discover().values():
        if spec.language != "cuda" or not spec.needs.include(gpu.arch):
            continue
        for head_dim in spec.head_dims:
            for group in (1, 2, 4, 8, 16):
                instance = spec.instance(
                    spec.shape(dtype="bf16", head_dim=head_dim, group=group), gpu=gpu
                )
                assert spec.smem(instance).total <= gpu.smem_per_block_max_bytes
                options = spec.tiles(spec.shape(head_dim=head_dim, group=group), instance.policy)
                first = spec.instance(spec.shape(dtype="bf16", head_dim=head_dim, group=group))
                assert first.tile == options[0]
                if spec.smem(first).total <= gpu.smem_per_block_max_bytes:
                    assert instance.tile == options[0]


def test_a_tile_that_does_not_fit_the_gpu_is_refused():
    gpu, mma = hardware.gpu("a10"), discover()["decode_mma"]
    large, *_ = mma.tiles(mma.shape(head_dim=256, group=16), mma.policies[0])
    case = decode_case((5,), head_dim=256)
    message = f"tile = {large.label}, allowed for decode_mma in 101,376 B of NVIDIA A10: "
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.decode(case.q, case.cache, kernel="decode_mma", tile=large.label, target="a10")
    plan = ops.decode(case.q, case.cache, kernel="decode_mma", target="a10").plan
    assert plan.smem_bytes <= gpu.smem_per_block_max_bytes
    assert plan.blocks_per_sm >= 1
