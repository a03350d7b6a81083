"""The verb `decode`: one query token a request over a paged cache."""

import importlib

import torch

from labkernels.kernels.decode_step import DecodeRequest
from labkernels.kernels.paged_kv import MAX_KEYS, PagedKV, require_device, require_rows
from labkernels.kernels.spec import KernelSpec, NumericPolicy
from labkernels.kernels.step import Step
from labkernels.ops import _arguments as arguments
from labkernels.ops._arguments import MAX_BATCH, Result


def decode(
    q: torch.Tensor,
    cache: PagedKV,
    *,
    kernel: str | KernelSpec | None = None,
    tile: str | None = None,
    keys_per_split: int | None = None,
    policy: NumericPolicy | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    target: str | None = None,
    checks: bool = False,
) -> Result:
    """Attention of one query token a request over its paged keys and values.

    Shapes: q [batch, q_heads, head_dim], q_heads a multiple of cache.kv_heads; out alike, lse2
    [batch, q_heads] fp32. A request without keys gives out = 0, lse2 = -inf.
    kernel: a name, or the spec of a kernel that is not among the lab's.
    Units: scale multiplies q k (default 1 / sqrt(head_dim)); lse2 is in base 2.
    Error: within numerics.bounds.out_bound for the policy.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.
    """
    step = decode_step(
        q,
        cache,
        kernel=kernel,
        tile=tile,
        keys_per_split=keys_per_split,
        policy=policy,
        scale=scale,
        out=out,
        lse2=lse2,
        target=target,
        checks=checks,
    )
    cache.check_contents()
    step.run()
    return Result(step.out, step.lse2, step.plan)


def decode_step(
    q: torch.Tensor,
    cache: PagedKV,
    *,
    kernel: str | KernelSpec | None = None,
    tile: str | None = None,
    keys_per_split: int | None = None,
    policy: NumericPolicy | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    target: str | None = None,
    checks: bool = False,
) -> Step:
    """Prepare a decode that runs again and again, as `decode` but without reading lengths or pages.

    The plan depends on shapes alone, so the step may be captured in a CUDA graph and stays right
    when lengths and page numbers change; keeping them in range is then the caller's part
    (`PagedKV.check_contents`).
    Raises: ValueError naming the argument, its value and what is allowed.
    """
    _check_query(q, cache)
    gpu = arguments.target_gpu(q.device, target)
    group = q.shape[1] // cache.kv_heads
    # an 8-row tile holds groups up to 8 with less padding and half the accumulators
    name = kernel or ("decode_mma_n8" if group <= 8 else "decode_mma")
    spec = arguments.kernel_named(name, "decode", gpu)
    instance = arguments.instance_of(spec, q, group=group, gpu=gpu, tile=tile, policy=policy)
    scale = arguments.scale_of(scale, q.shape[2])
    arguments.check_count("keys_per_split", keys_per_split, MAX_KEYS)
    dtype = arguments.out_dtype(q, instance.policy)
    request = DecodeRequest(
        spec=spec,
        instance=instance,
        q=q,
        cache=cache,
        scale=scale,
        keys_per_split=keys_per_split,
        out=arguments.output("out", out, q.shape, dtype, q.device),
        lse2=arguments.output("lse2", lse2, q.shape[:2], torch.float32, q.device),
        gpu=gpu,
        checks=checks,
    )
    return importlib.import_module(spec.runner).prepare(request)


def _check_query(q: torch.Tensor, cache: PagedKV) -> None:
    cache.require_twin_pools()
    if q.dim() != 3:
        raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: [batch, q_heads, head_dim]")
    if q.dtype != cache.k.dtype:
        raise ValueError(f"q.dtype = {q.dtype}, allowed: {cache.k.dtype}, as k")
    require_device("q", q, cache.k.device)
    require_rows("q", q)
    if not 1 <= len(q) <= MAX_BATCH:
        raise ValueError(f"len(q) = {len(q)} requests, allowed: 1 to {MAX_BATCH}")
    if len(q) != cache.batch:
        raise ValueError(f"len(q) = {len(q)}, allowed: {cache.batch}, the requests of the cache")
    arguments.check_heads(q, cache.head_dim, cache.kv_heads)
