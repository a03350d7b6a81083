"""The verb `decode`: one query token per request over a paged cache."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import torch

from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.page_guard import guarded
from labkernels.kernels.caches.paged import PagedHeads, PagedKV, QuantizedKV
from labkernels.kernels.call import (
    Asked,
    Attention,
    AttentionOptions,
    Step,
    VariantOptions,
    asked_of,
    check_options,
    in_graph,
    keep,
    kept,
    require_options,
)
from labkernels.kernels.checks import DTYPES, KV_DTYPES, MAX_BATCH, MAX_KEYS, require_place
from labkernels.kernels.choice import Ask, choose
from labkernels.kernels.decode.call import DecodeCall
from labkernels.kernels.decode.schedule import SPLIT_NUMBERS
from labkernels.kernels.kernel import Shape
from labkernels.kernels.memory import require_apart

DIMS = "[batch, q_heads, head_dim]"


class DecodeOptions(AttentionOptions, VariantOptions, total=False):
    """The options of a decode.

    keys_per_split: by default chosen from the shapes. batch_invariant: a request's bits must not
    depend on the other requests; without keys_per_split its splits then follow from its own length
    (`schedule.invariant_keys_per_split`). A `prefill` of one token has other bits: here warps
    divide the keys, there the rows. kv_lens: the values of cache.kv_len, if the caller's host knows
    them; then nothing is read from a GPU, and the caller must keep lengths and pages in range.
    """

    keys_per_split: int | None
    batch_invariant: bool
    kv_lens: Sequence[int] | None


def decode(
    q: torch.Tensor, cache: PagedKV | QuantizedKV, **options: Unpack[DecodeOptions]
) -> Step[Attention]:
    """Compute attention of one query token per request over its paged keys and values.

    Shapes: q, out [batch, q_heads, head_dim], q_heads a multiple of cache.kv_heads; lse2 [batch,
    q_heads] fp32. A request without keys gives out = 0, lse2 = -inf. options: the fields of
    DecodeOptions. On a GPU, lengths and pages are read and checked when torch has seen one of them
    change (see `PagedKV.require_contents`), and not at all with kv_lens.
    A QuantizedKV gives, on sm_90, the bits of a PagedKV that holds its codes as 16-bit numbers, if
    kernel, keys_per_split, and warps and keys of the tile are the same (by default they need not
    be), and the softmax scale times log2 e, in fp32, is multiplied by the head's k_scale in fp32,
    and the output in fp32 by its v_scale before it is rounded. If blocks of keys have scales,
    scores and P are multiplied in fp32: the bits are those of a PagedKV that holds codes times
    scales, if scales are powers of two; q in fp16 then has decode_fma alone, since P times a scale
    leaves its range.
    Earlier GPUs add the products of K in another order (`decode/codes.cuh`).
    Error: within numerics.error.bounds.out_bound for the policy.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.

    >>> k, v = torch.randn(2, 3, 16, 2, 64).half()  # 3 pages of 16 keys, 2 heads
    >>> table = torch.tensor([[2, 0], [1, 0]], dtype=torch.int32)
    >>> cache = PagedKV(k, v, table, torch.tensor([20, 7], dtype=torch.int32))
    >>> step = decode(torch.randn(2, 8, 64).half(), cache)
    >>> step.out.shape, step.plan.kernel
    (torch.Size([2, 8, 64]), 'decode_mma_n8')
    """
    if torch.compiler.is_compiling():
        if not isinstance(cache, PagedKV):
            arguments.refuse_kind("cache", cache, "PagedKV in a graph of torch.compile")
        return in_graph("decode", Attention, q, *cache.tensors.values(), **options)
    if not options.keys() <= DecodeOptions.__annotations__.keys():
        require_options("decode", options, DecodeOptions)
    q = q.resolve_neg() if getattr(q, "is_neg", bool)() else q
    step = decode_step(q, cache, **options)
    cache.require_contents(options.get("kv_lens"))
    step.run()
    return step


def decode_step(
    q: torch.Tensor,
    cache: PagedKV | QuantizedKV,
    *,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    kv_lens: Sequence[int] | None = None,
    **options: Unpack[DecodeOptions],
) -> Step[Attention]:
    """Prepare a decode that can run many times; like `decode`, but lengths and pages are not read.

    The plan depends only on shapes, so the step may be captured in a CUDA graph and stays right
    when lengths and page numbers change. The caller must keep them in range
    (`PagedKV.check_contents`).
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> pages, table = torch.randn(2, 1, 16, 2, 64).half(), torch.zeros(1, 1, dtype=torch.int32)
    >>> cache = PagedKV(*pages, table, kv_len=torch.tensor([5], dtype=torch.int32))
    >>> step = decode_step(torch.randn(1, 8, 64).half(), cache)
    >>> _ = cache.kv_len.fill_(6)  # one more key; the plan stays
    >>> step.run()
    >>> step.out.shape
    torch.Size([1, 8, 64])
    """
    del kv_lens  # only `decode` needs it, which checks the contents
    if not isinstance(cache, PagedHeads):
        arguments.refuse_kind("cache", cache, "PagedKV, QuantizedKV")
    asked, of_variant = asked_of("decode_step", q, options, DecodeOptions)
    facts = ("decode", *arguments.facts(q), cache.facts)
    call = kept(facts, asked) or keep(facts, asked, _checked(q, cache, asked))
    arguments.require_no_gradient("decode", q=q, k=cache.k, v=cache.v)
    require_place("q", q)
    if out is not None or lse2 is not None:
        require_apart({"out": out, "lse2": lse2}, {"q": q, **cache.tensors, **of_variant})
    call = call.on(
        q=q,
        cache=cache,
        out=arguments.output("out", out, call.out),
        lse2=arguments.output("lse2", lse2, call.lse2),
        variant_tensors=of_variant,
    )
    step = call.choice.kernel.prepare(call)
    return guarded(step, call, cache) if asked.checks else step


def _checked(q: torch.Tensor, cache: PagedHeads, asked: Asked) -> DecodeCall:
    """Return the checked call of these arguments without its tensors: only their facts count."""
    check_options(asked)
    k, device = cache.k, q.device
    kv_heads, head_dim = k.shape[2:]
    cache.require_equal_strides()
    kv_dtype = KV_DTYPES.get(k.dtype)
    arguments.require_query(q, k, head_dim, kv_heads, DIMS)
    batch = q.shape[0]
    if not 1 <= batch <= MAX_BATCH:
        raise ValueError(f"len(q) = {batch} requests, allowed: 1 to {MAX_BATCH}")
    if batch != cache.kv_len.shape[0]:
        raise ValueError(f"len(q) = {batch}, allowed: {cache.batch}, the requests of the cache")
    arguments.check_count("keys_per_split", asked.keys_per_split, MAX_KEYS)
    gpu, group = arguments.target_gpu(device, asked.target), q.shape[1] // kv_heads
    rows = 1 << (group - 1).bit_length()
    dims, page_size = (head_dim, head_dim), k.shape[1]
    # the query is the last key, so that no key lies to its right
    variant = replace(asked.variant, window_right=None)
    how = {"variant": variant, "kv_dtype": kv_dtype}
    how["of_blocks"] = isinstance(cache, QuantizedKV) and cache.of_blocks
    shape = Shape(DTYPES[q.dtype], *dims, group, rows, "paged", page_size, **how)
    choice = choose("decode", shape, gpu, Ask(asked.kernel, asked.tile, asked.policy))
    by_length = asked.batch_invariant and asked.keys_per_split is None
    if by_length:
        choice = choice.with_numbers(SPLIT_NUMBERS)
    return DecodeCall(
        choice=choice,
        gpu=gpu,
        device=device,
        checks=asked.checks,
        group=group,
        variant=variant,
        scale=arguments.scale_of(asked.scale, head_dim),
        keys_per_split=asked.keys_per_split,
        by_length=by_length,
        **arguments.blank_outputs(q, head_dim, choice.instance.policy),
    )
