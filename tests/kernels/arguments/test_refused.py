"""What a forward verb cannot compute is refused by name, with what is allowed; nothing is written.

Most checks serve all verbs: what decode shows is not repeated for the others, but for whether each
of their tensors is checked at all.
"""

import math
import re
from dataclasses import fields

import pytest
import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.policy import CUDA_CORES, NumericPolicy
from tests.kernels.decode.cases import decode_case, poisoned, sums
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case

CASES = {
    "decode": ("decode_mma", decode_case((33, 5))),
    "ragged": ("prefill_fma", prefill_case((33, 5), (33, 5))),
    "paged": ("prefill_fma", prefill_case((33, 5), (33, 5), page_size=16, layout="nhd")),
    "mla": (None, mla_case((1, 2), (5, 33))),
}


def meta(tensor):
    return tensor.to("meta")


def put(index, value):
    """Return a function that sets one entry of a tensor."""

    def change(tensor):
        tensor[index] = value
        return tensor

    return change


def misaligned(tensor):
    """Return the same values one element later in memory."""
    whole = torch.zeros(tensor.numel() + 8, dtype=tensor.dtype)
    return whole[1 : 1 + tensor.numel()].view(tensor.shape).copy_(tensor)


def gapped(tensor):
    """Return the same values with a stride of 2 in the last dimension."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def odd_rows(tensor):
    """Return the same values in rows whose length is no multiple of 16 bytes."""
    wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + 1, dtype=tensor.dtype)
    wide[..., :-1] = tensor
    return wide[..., :-1]


# the case, the tensors that are changed and how, what is said
TENSORS = [
    ("decode", "q", torch.Tensor.float, "q.dtype = torch.float32, allowed: torch.float16, as k"),
    ("decode", "k", torch.Tensor.double, "k.dtype = torch.float64, allowed: torch.float16, torch."),
    ("decode", "v", torch.Tensor.bfloat16, "v.dtype = torch.bfloat16, allowed: torch.float16, as"),
    ("decode", "page_table", torch.Tensor.long, "page_table.dtype = torch.int64, allowed: torch.i"),
    ("decode", "kv_len", torch.Tensor.float, "kv_len.dtype = torch.float32, allowed: torch.int32"),
    ("decode", "q", meta, "q.device = meta, allowed: cpu, where k is"),
    ("decode", "v", meta, "v.device = meta, allowed: cpu, where k is"),
    ("decode", "page_table", meta, "page_table.device = meta, allowed: cpu"),
    ("decode", "kv_len", meta, "kv_len.device = meta, allowed: cpu"),
    ("decode", "q k v page_table kv_len", meta, "q.device = meta, allowed: cpu, cuda"),
    ("decode", "page_table", put((1, 0), 9), "page_table[1, 0] = 9, allowed: 0 to 8"),
    ("decode", "page_table", put((0, 2), -1), "page_table[0, 2] = -1, allowed: 0 to 8"),
    ("decode", "kv_len", put(1, -1), "kv_len[1] = -1, allowed: 0 to 64"),
    ("decode", "kv_len", put(0, 65), "kv_len[0] = 65, allowed: 0 to 64"),
    ("decode", "kv_len", lambda x: x[:1], "len(kv_len) = 1, allowed: 2, the rows of page_table"),
    ("decode", "kv_len", lambda x: x[None], "kv_len.shape = (1, 2), allowed: 1 dimensions"),
    ("decode", "kv_len", gapped, "kv_len.stride() = (2,), allowed: last stride 1"),
    ("decode", "page_table", lambda x: x[0], "page_table.shape = (4,), allowed: 2 dimensions"),
    ("decode", "q", gapped, "q.stride() = (1024, 128, 2), allowed: last stride 1"),
    ("decode", "q", misaligned, "q: address 0x"),
    ("decode", "q", odd_rows, "allowed: rows that start at multiples of 16 bytes"),
    ("decode", "q", lambda x: x[0], "q.shape = (8, 64), allowed: [batch, q_heads, head_dim]"),
    ("decode", "q", lambda x: x[:1], "len(q) = 1, allowed: 2, the requests of the cache"),
    ("decode", "q", lambda x: x[:, :7], "q.shape[1] = 7 query heads, allowed: a multiple of 2 KV"),
    ("decode", "q", lambda x: x[:, :, :32], "q.shape[2] = 32, allowed: 64, the head_dim of k"),
    ("decode", "k", lambda x: x[0], "k.shape = (16, 2, 64), allowed: [pages, page_size, kv_heads"),
    ("decode", "v", lambda x: x[1:], "v.shape = (8, 16, 2, 64), allowed: (9, 16, 2, 64), as k"),
    ("decode", "v", lambda x: x.mT.contiguous().mT, "v.stride() = "),
    ("decode", "k v", lambda x: x[:, :, :0], "k.shape[2] = 0 KV heads, allowed: 1 or more"),
    ("decode", "k v", lambda x: x[:, :0], "page_size = 0, allowed: 1 to 256"),
    ("decode", "k v", lambda x: x.repeat(1, 17, 1, 1), "page_size = 272, allowed: 1 to 256"),
    ("decode", "q page_table kv_len", lambda x: x[:0], "len(q) = 0 requests, allowed: 1 to 65535"),
    ("decode", "q k v", lambda x: x[..., :48].contiguous(), "head_dim = 48, allowed for decode_mm"),
    ("ragged", "q", torch.Tensor.float, "q.dtype = torch.float32, allowed: torch.float16, as k"),
    ("ragged", "q", meta, "q.device = meta, allowed: cpu, where k is"),
    ("ragged", "v", meta, "v.device = meta, allowed: cpu, where k is"),
    ("ragged", "q", lambda x: x[:, :3], "q.shape[1] = 3 query heads, allowed: a multiple of 2 KV"),
    ("ragged", "q", lambda x: x[:-1], "cu_seqlens_q[-1] = 38, allowed: 37, the rows that there ar"),
    ("ragged", "k", lambda x: x[:, 0], "k.shape = (38, 64), allowed: [total, kv_heads, head_dim]"),
    ("ragged", "k", lambda x: x[:-1], "v.shape = (38, 2, 64), allowed: (37, 2, 64), as k"),
    ("ragged", "v", lambda x: x[:, :1], "v.shape = (38, 1, 64), allowed: (38, 2, 64), as k"),
    ("ragged", "v", lambda x: x[..., :32], "head_dim_v = 32, allowed for prefill_fma: 64 with hea"),
    ("ragged", "q k v cu_seqlens cu_seqlens_q", meta, "q.device = meta, allowed: cpu, cuda"),
    ("ragged", "q k v", lambda x: x[..., :48].contiguous(), "head_dim = 48, allowed for prefill_f"),
    ("ragged", "cu_seqlens_q", torch.Tensor.long, "cu_seqlens_q.dtype = torch.int64, allowed: tor"),
    ("ragged", "cu_seqlens_q", lambda x: x[None], "cu_seqlens_q.shape = (1, 3), allowed: [batch +"),
    ("ragged", "cu_seqlens_q", lambda x: x[:1], "cu_seqlens_q.shape = (1,), allowed: [batch + 1],"),
    ("ragged", "cu_seqlens_q", lambda x: x[:2], "len(cu_seqlens_q) = 2, allowed: 3, the requests"),
    ("ragged", "cu_seqlens_q", gapped, "cu_seqlens_q.stride() = (2,), allowed: (1,)"),
    ("ragged", "cu_seqlens_q", meta, "cu_seqlens_q.device = meta, allowed: cpu, where k is"),
    ("ragged", "cu_seqlens_q", put(0, 1), "cu_seqlens_q[0] = 1, allowed: 0"),
    ("ragged", "cu_seqlens_q", put(1, 39), "cu_seqlens_q[2] = 38, allowed: 39 or more, as it asce"),
    ("ragged", "cu_seqlens_q", put(2, 37), "cu_seqlens_q[-1] = 37, allowed: 38, the rows that the"),
    ("ragged", "cu_seqlens", torch.Tensor.float, "cu_seqlens.dtype = torch.float32, allowed: torc"),
    ("ragged", "cu_seqlens", put(1, -7), "cu_seqlens[1] = -7, allowed: 0 or more, as it ascends"),
    ("ragged", "cu_seqlens", put(2, 40), "cu_seqlens[-1] = 40, allowed: 38, the rows that there a"),
    ("paged", "kv_len", put(0, 65), "kv_len[0] = 65, allowed: 0 to 64"),
    ("paged", "page_table", put((1, 0), 9), "page_table[1, 0] = 9, allowed: 0 to 8"),
    ("mla", "q_nope", lambda x: x[..., :256], "q_nope.shape = (3, 5, 256), allowed: [total, heads"),
    ("mla", "q_pe", lambda x: x[..., :32], "q_pe.shape = (3, 5, 32), allowed: [total, heads, 64]"),
    ("mla", "q_pe", lambda x: x[:, :3], "q_pe.shape[:2] = (3, 3), allowed: (3, 5), as q_nope"),
    ("mla", "q_nope", torch.Tensor.half, "q_nope.dtype = torch.float16, allowed: torch.bfloat16,"),
    ("mla", "q_nope q_pe", lambda x: x.repeat(1, 26, 1), "q_nope.shape[1] = 130 heads, allowed: 1"),
    ("mla", "ckv", lambda x: x[..., :256], "ckv.shape[2] = 256, allowed: 512"),
    ("mla", "kpe", lambda x: x[..., :32], "kpe.shape[2] = 32, allowed: 64"),
    ("mla", "kpe", lambda x: x[:-1], "as ckv"),
    ("mla", "kpe", torch.Tensor.half, "kpe.dtype = torch.float16, allowed: torch.bfloat16, as ckv"),
    ("mla", "ckv kpe", lambda x: x[:, :0], "ckv.shape[1] = 0 page_size"),
    ("mla", "page_table", lambda x: x.fill_(99), "page_table[0, 0] = 99, allowed: 0 to"),
    ("mla", "kv_len", lambda x: x.fill_(999), "kv_len[0] = 999, allowed: 0 to"),
    ("mla", "cu_seqlens_q", lambda x: x[:2], "len(cu_seqlens_q) = 2, allowed: 3, the requests"),
    ("mla", "cu_seqlens_q", lambda x: x - x, "cu_seqlens_q[-1] = 0, allowed: 3, the rows that the"),
]
OPTIONS = [
    ("decode", {"kernel": "decode"}, "kernel = 'decode', allowed: reference, decode_fma, "),
    ("decode", {"tile": "9x9x9x9"}, "tile = '9x9x9x9', allowed for decode_mma: 4x16x"),
    ("decode", {"kernel": "decode_fma", "policy": NumericPolicy()}, "for decode_fma: p=fp32,"),
    ("decode", {"policy": CUDA_CORES}, "policy = p=fp32,denominator=unrounded,exp2=mufu,accumulat"),
    *(("decode", {"scale": x}, f"scale = {x}, allowed: a positive") for x in (0.0, -1.0, math.inf)),
    ("decode", {"scale": math.nan}, "scale = nan, allowed: a positive number"),
    ("decode", {"keys_per_split": 0}, "keys_per_split = 0, allowed: 1 to "),
    ("decode", {"keys_per_split": 2**32 + 16}, "keys_per_split = 4294967312, allowed: 1 to "),
    ("decode", {"target": "h300"}, "target = 'h300', allowed: t4, a100, "),
    ("ragged", {"kernel": "decode_fma"}, "kernel = 'decode_fma', allowed: reference_prefill, pref"),
    ("ragged", {"tile": "9x9x9x9x9"}, "tile = '9x9x9x9x9', allowed for prefill_fma: 128x64x8x1x1,"),
    ("ragged", {"splits": 0}, "splits = 0, allowed: 1 to 65535"),
    ("ragged", {"splits": 2, "keys_per_split": 16}, "splits = 2 and keys_per_split = 16, allowed:"),
    ("ragged", {"target": "h300"}, "target = 'h300', allowed: t4, a100, "),
    ("mla", {"kernel": "decode_mma"}, "kernel = 'decode_mma', allowed: reference_mla, mla_fma"),
    ("mla", {"kernel": "mla_mma", "tile": "1x1"}, "tile = '1x1', allowed for mla_mma: "),
    ("mla", {"target": "v100"}, "target = 'v100', allowed: "),
    ("decode", {"out": torch.Tensor.float}, "out.dtype = torch.float32, allowed: torch.float16"),
    ("decode", {"out": lambda x: x[:1]}, "out: shape (1, 8, 64)"),
    ("decode", {"out": gapped}, "allowed: (2, 8, 64), contiguous"),
    ("decode", {"lse2": torch.Tensor.double}, "lse2.dtype = torch.float64, allowed: torch.float32"),
    ("decode", {"lse2": lambda x: x.t().contiguous()}, "lse2: shape (8, 2)"),
    ("ragged", {"out": torch.Tensor.float}, "out.dtype = torch.float32, allowed: torch.float16"),
    ("ragged", {"lse2": lambda x: x[1:]}, "lse2: shape (37, 4)"),
    ("mla", {"out": torch.Tensor.float}, "out.dtype = torch.float32, allowed: torch.bfloat16"),
]


@pytest.mark.parametrize(
    ("name", "changed", "change", "message"), TENSORS, ids=[f"{n}: {m}" for n, _, _, m in TENSORS]
)
def test_bad_tensor_is_named(name, changed, change, message):
    kernel, case = CASES[name]
    names = [field.name for field in fields(case.kv)]
    outputs = poisoned(case)
    given = {each: getattr(case.kv, each) for each in names}
    given |= {each: getattr(case, each) for each in (*case.queries, "cu_seqlens_q")}
    given |= {each: change(given[each].clone()) for each in changed.split()}
    queries = [given[each] for each in case.queries]
    ends = [] if case.cu_seqlens_q is None else [given["cu_seqlens_q"]]
    how = {"kernel": kernel, "out": outputs.out, "lse2": outputs.lse2, **case.how}

    def call():
        kv = type(case.kv)(**{each: given[each] for each in names})
        getattr(ops, case.verb)(*queries, kv, *ends, **how)

    with pytest.raises(ValueError, match=re.escape(message)):
        call()
    assert all(whole.isnan().all() for whole in outputs.storage), "something was written"


@pytest.mark.parametrize(
    ("name", "options", "message"), OPTIONS, ids=[f"{n}: {m}" for n, _, m in OPTIONS]
)
def test_bad_option_is_named(name, options, message):
    kernel, case = CASES[name]
    outputs = poisoned(case)
    how = {"kernel": kernel, "out": outputs.out, "lse2": outputs.lse2}
    how |= {k: v(how[k]) if k in ("out", "lse2") else v for k, v in options.items()}
    with pytest.raises(ValueError, match=re.escape(message)):
        case.run(**how)
    assert all(whole.isnan().all() for whole in outputs.storage), "something was written"
    assert all(how[k].is_meta or how[k].isnan().all() for k in ("out", "lse2"))


def test_sizes_beyond_a_launch_are_refused():
    case, paged = decode_case((5,)), prefill_case((1,), (5,), page_size=256, layout="nhd")
    table = case.cache.page_table[:, :1]
    wide = case.with_kv(page_table=table.expand(1, 4097).contiguous())
    with pytest.raises(ValueError, match=r"keys_per_split = 1, allowed: at least 2 for 65552 keys"):
        wide.run(keys_per_split=1)
    wide = paged.with_kv(page_table=paged.kv.page_table[:, :1].expand(1, 257).contiguous())
    wide.kv.kv_len[:] = 65_792
    message = "keys_per_split = 1, allowed: at least 2 for 65792 keys, which is 65535 splits"
    with pytest.raises(ValueError, match=message):
        wide.step("prefill_fma", keys_per_split=1)
    cache = case.cache
    with pytest.raises(ValueError, match=r"page_size = 1073741840, allowed: 0 to 1073741824"):
        PagedKV(cache.k, cache.v, torch.empty(1, 2**26 + 1, dtype=torch.int32), cache.kv_len)
    with pytest.raises(ValueError, match="a request of 129 tokens, allowed: 0 to 128"):
        mla_case((129,), (9,), heads=1).run()


def test_packed_qkv_of_another_shape_is_refused():
    for shape in ((5, 2, 4, 64), (5, 3, 64)):
        message = re.escape(f"qkv.shape = {shape}, allowed: [total, 3, heads, head_dim]")
        with pytest.raises(ValueError, match=message):
            ops.varlen_qkvpacked(torch.empty(shape).half(), sums((5,)))


def test_tensors_without_memory_have_a_plan_for_a_named_target():
    x, ends = torch.empty(5, 2, 64).half(), sums((5,))
    real = ops.prefill_step(x, RaggedKV(x, x, ends), ends, target="a100").plan
    x, ends = meta(x), meta(ends)
    how = {"q_lens": (5,), "kv_lens": (5,), "target": "a100"}
    assert ops.prefill_step(x, RaggedKV(x, x, ends), ends, **how).plan == real
