"""The verb `mla_decode`: a few query tokens a request over a paged cache of latent rows."""

import importlib

import torch

from labkernels.hardware import Gpu
from labkernels.kernels.latent_kv import LATENT_DIM, ROPE_DIM, LatentKV
from labkernels.kernels.mla_step import MlaRequest
from labkernels.kernels.paged_kv import require_device, require_rows
from labkernels.kernels.prefill_plan import Lengths
from labkernels.kernels.ragged_kv import read_lengths, require_cu_seqlens
from labkernels.kernels.spec import Instance, KernelSpec, NumericPolicy
from labkernels.kernels.step import Step
from labkernels.ops import _arguments as arguments
from labkernels.ops._arguments import Result

MAX_HEADS = 128
MAX_TOKENS = 4  # of a request: a new one, and those that a draft model proposed


def mla_decode(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    cache: LatentKV,
    cu_seqlens_q: torch.Tensor | None = None,
    *,
    causal: bool = True,
    kernel: str | KernelSpec | None = None,
    tile: str | None = None,
    splits: int | None = None,
    keys_per_split: int | None = None,
    policy: NumericPolicy | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    target: str | None = None,
    checks: bool = False,
) -> Result:
    """Attention of a few query tokens a request over latent rows, in the absorbed form of MLA.

    Shapes: q_nope [total, heads, 512], q_pe [total, heads, 64], heads 1 to 128; cu_seqlens_q
    [batch + 1] int32, from 0 to total, up to 4 tokens a request (without it: one a request); out
    [total, heads, 512], lse2 [total, heads] fp32. K is ckv and kpe side by side, V is ckv. A causal
    mask is aligned to the end: query i of n with L keys sees keys 0 to L - n + i. A query without
    keys gives out = 0, lse2 = -inf.
    kernel: a name, or the spec of a kernel that is not among the lab's; without it the GPU's facts
    choose, and result.plan.why says how. A kernel that is named runs, or is refused.
    Units: scale multiplies q k (default 1 / sqrt(192), of the heads before absorption); lse2 is in
    base 2.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.
    """
    step = mla_decode_step(
        q_nope,
        q_pe,
        cache,
        cu_seqlens_q,
        causal=causal,
        kernel=kernel,
        tile=tile,
        splits=splits,
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


def mla_decode_step(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    cache: LatentKV,
    cu_seqlens_q: torch.Tensor | None = None,
    *,
    causal: bool = True,
    kernel: str | KernelSpec | None = None,
    tile: str | None = None,
    splits: int | None = None,
    keys_per_split: int | None = None,
    policy: NumericPolicy | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    target: str | None = None,
    checks: bool = False,
) -> Step:
    """Prepare an MLA decode that runs again and again, without reading page numbers.

    The lengths are read here, once, and must stay; page numbers may change between runs, and
    keeping them in range is then the caller's part (`LatentKV.check_contents`).
    Raises: ValueError naming the argument, its value and what is allowed.
    """
    _check_query(q_nope, q_pe, cache)
    if cu_seqlens_q is None:
        cu_seqlens_q = torch.arange(len(q_nope) + 1, dtype=torch.int32, device=q_nope.device)
    lengths = _lengths(q_nope, cache, cu_seqlens_q)
    gpu = arguments.target_gpu(q_nope.device, target)
    tokens = max(1, int(lengths.q.max()))
    spec, why = arguments.chosen_kernel(kernel, "mla", gpu, rows=q_nope.shape[1] * tokens)
    arguments.check_cut(splits, keys_per_split)
    instance = _instance(spec, q_nope, gpu, tile, policy, tokens)
    dtype = arguments.out_dtype(q_nope, instance.policy)
    fixed_splits = keys_per_split is not None or splits == 1
    request = MlaRequest(
        spec=spec,
        why=f"{why}; {_why_this_tile(instance, tile, q_nope.shape[1] * tokens)}",
        instance=instance,
        q=q_nope,
        q_pe=q_pe,
        kv=cache,
        cu_seqlens_q=cu_seqlens_q,
        lengths=lengths,
        causal=causal,
        scale=arguments.scale_of(cache.default_scale if scale is None else scale),
        splits=splits,
        keys_per_split=keys_per_split,
        batch_invariant=fixed_splits
        and (tile is not None or _prefers_one_tile(spec, q_nope, gpu, policy)),
        out=arguments.output("out", out, q_nope.shape, dtype, q_nope.device),
        lse2=arguments.output("lse2", lse2, q_nope.shape[:2], torch.float32, q_nope.device),
        gpu=gpu,
        checks=checks,
    )
    return importlib.import_module(spec.runner).prepare(request)


def _instance(
    spec: KernelSpec,
    q_nope: torch.Tensor,
    gpu: Gpu,
    tile: str | None,
    policy: NumericPolicy | None,
    tokens: int,
) -> Instance:
    return arguments.instance_of(
        spec,
        q_nope,
        head_dim=LATENT_DIM + ROPE_DIM,
        group=q_nope.shape[1],
        tokens=tokens,
        gpu=gpu,
        tile=tile,
        policy=policy,
    )


def _why_this_tile(instance: Instance, named: str | None, rows: int) -> str:
    how = f"the first for {rows} rows that fits" if named is None else "named by the caller"
    return f"tile {instance.tile.label}: {how}"


def _prefers_one_tile(spec: KernelSpec, q_nope: torch.Tensor, gpu: Gpu, policy) -> bool:
    """Whether the preferred tile is the same however many tokens the longest request has."""
    every = range(1, MAX_TOKENS + 1)
    return len({_instance(spec, q_nope, gpu, None, policy, n).tile for n in every}) == 1


def _check_query(q_nope: torch.Tensor, q_pe: torch.Tensor, cache: LatentKV) -> None:
    for name, q, channels in (("q_nope", q_nope, LATENT_DIM), ("q_pe", q_pe, ROPE_DIM)):
        if q.dim() != 3 or q.shape[2] != channels:
            raise ValueError(
                f"{name}.shape = {tuple(q.shape)}, allowed: [total, heads, {channels}]"
            )
        if q.dtype != cache.ckv.dtype:
            raise ValueError(f"{name}.dtype = {q.dtype}, allowed: {cache.ckv.dtype}, as ckv")
        require_device(name, q, cache.ckv.device, "ckv")
        require_rows(name, q)
    if q_pe.shape[:2] != q_nope.shape[:2]:
        allowed = f"{tuple(q_nope.shape[:2])}, as q_nope"
        raise ValueError(f"q_pe.shape[:2] = {tuple(q_pe.shape[:2])}, allowed: {allowed}")
    if not 1 <= q_nope.shape[1] <= MAX_HEADS:
        raise ValueError(f"q_nope.shape[1] = {q_nope.shape[1]} heads, allowed: 1 to {MAX_HEADS}")


def _lengths(q_nope: torch.Tensor, cache: LatentKV, cu_seqlens_q: torch.Tensor) -> Lengths:
    require_cu_seqlens("cu_seqlens_q", cu_seqlens_q, cache.ckv.device)
    if len(cu_seqlens_q) != cache.batch + 1:
        raise ValueError(
            f"len(cu_seqlens_q) = {len(cu_seqlens_q)}, allowed: {cache.batch + 1}, the requests of"
            " the cache and one more"
        )
    lengths = Lengths(read_lengths("cu_seqlens_q", cu_seqlens_q, len(q_nope)), cache.read_lengths())
    if lengths.q.max() > MAX_TOKENS:
        raise ValueError(
            f"cu_seqlens_q: a request of {lengths.q.max()} tokens, allowed: 0 to {MAX_TOKENS}"
        )
    return lengths
