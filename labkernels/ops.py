"""The public verbs. Tensors on a GPU run the GPU kernel, tensors on a CPU its CPU build."""

import importlib
import math
from dataclasses import dataclass

import torch

from labkernels import hardware
from labkernels.kernels.decode_plan import DecodePlan
from labkernels.kernels.decode_step import DecodeRequest, DecodeStep
from labkernels.kernels.paged_kv import MAX_KEYS, PagedKV, require_device, require_rows
from labkernels.kernels.spec import DecodeTile, Instance, KernelSpec, NumericPolicy, discover

DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
MAX_BATCH = 65_535  # requests lie along grid z
DEFAULT_TARGET = "h200"  # whose plan and arithmetic a machine without a GPU follows


@dataclass(frozen=True, eq=False)
class DecodeResult:
    """Shapes: out [batch, q_heads, head_dim]; lse2 [batch, q_heads] fp32, base 2. And the plan."""

    out: torch.Tensor
    lse2: torch.Tensor
    plan: DecodePlan


def decode(
    q: torch.Tensor,
    cache: PagedKV,
    *,
    kernel: str | None = None,
    tile: str | None = None,
    keys_per_split: int | None = None,
    policy: NumericPolicy | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    target: str | None = None,
    checks: bool = False,
) -> DecodeResult:
    """Attention of one query token a request over its paged keys and values.

    Shapes: q [batch, q_heads, head_dim], q_heads a multiple of cache.kv_heads; out alike, lse2
    [batch, q_heads] fp32. A request without keys gives out = 0, lse2 = -inf.
    Units: scale multiplies q k (default 1 / sqrt(head_dim)); lse2 is in base 2.
    Error: within numerics.bounds.decode_bound for the policy.
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
    return DecodeResult(step.out, step.lse2, step.plan)


def decode_step(
    q: torch.Tensor,
    cache: PagedKV,
    *,
    kernel: str | None = None,
    tile: str | None = None,
    keys_per_split: int | None = None,
    policy: NumericPolicy | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    target: str | None = None,
    checks: bool = False,
) -> DecodeStep:
    """Prepare a decode that runs again and again, as `decode` but without reading lengths or pages.

    The plan depends on shapes alone, so the step may be captured in a CUDA graph and stays right
    when lengths and page numbers change; keeping them in range is then the caller's part
    (`PagedKV.check_contents`).
    Raises: ValueError naming the argument, its value and what is allowed.
    """
    _check_query(q, cache)
    gpu = _target_gpu(q, target)
    group = q.shape[1] // cache.kv_heads
    spec = _spec(kernel, group)
    if not spec.runs_on(gpu.arch):
        raise ValueError(
            f"kernel = {spec.name!r} needs sm_{spec.min_arch}, this GPU is {gpu.arch},"
            " allowed: tensors on the CPU, where its CPU build runs"
        )
    instance = _instance(spec, q, group, tile, policy, gpu)
    scale = _scale(scale, q.shape[2])
    if keys_per_split is not None and not 1 <= keys_per_split <= MAX_KEYS:
        raise ValueError(f"keys_per_split = {keys_per_split}, allowed: 1 to {MAX_KEYS}")
    request = DecodeRequest(
        spec=spec,
        instance=instance,
        q=q,
        cache=cache,
        scale=scale,
        keys_per_split=keys_per_split,
        out=_output("out", out, q.shape, _out_dtype(q, instance.policy), q.device),
        lse2=_output("lse2", lse2, q.shape[:2], torch.float32, q.device),
        gpu=gpu,
        checks=checks,
    )
    return importlib.import_module(spec.runner).prepare(request)


def _spec(kernel: str | None, group: int) -> KernelSpec:
    # an 8-row tile holds groups up to 8 with less padding and half the accumulators
    name = kernel or ("decode_mma_n8" if group <= 8 else "decode_mma")
    decoders = {spec.name: spec for spec in discover().values() if spec.family == "decode"}
    if name not in decoders:
        raise ValueError(f"kernel = {name!r}, allowed: {', '.join(decoders)}")
    return decoders[name]


def _instance(
    spec: KernelSpec,
    q: torch.Tensor,
    group: int,
    tile: str | None,
    policy: NumericPolicy | None,
    gpu: hardware.Gpu,
) -> Instance:
    head_dim, rows = q.shape[2], spec.rows(group)
    chosen: DecodeTile | None = None
    if tile is not None and head_dim in spec.head_dims:
        chosen = spec.tile_named(tile, head_dim=head_dim, rows=rows, policy=policy)
    return spec.instance(
        dtype=DTYPES[q.dtype],
        head_dim=head_dim,
        group=group,
        tile=chosen,
        policy=policy,
        gpu=gpu,
    )


def _target_gpu(q: torch.Tensor, target: str | None) -> hardware.Gpu:
    if q.device.type != "cuda":
        return hardware.gpu(target or DEFAULT_TARGET)
    from labkernels.cuda import device

    return device.planning_gpu(q.device.index)


def _check_query(q: torch.Tensor, cache: PagedKV) -> None:
    if q.dim() != 3:
        raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: [batch, q_heads, head_dim]")
    if q.dtype != cache.k.dtype:
        raise ValueError(f"q.dtype = {q.dtype}, allowed: {cache.k.dtype}, as k")
    require_device("q", q, cache.k.device)
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"q.device = {q.device}, allowed: cpu, cuda")
    require_rows("q", q)
    if not 1 <= len(q) <= MAX_BATCH:
        raise ValueError(f"len(q) = {len(q)} requests, allowed: 1 to {MAX_BATCH}")
    if len(q) != cache.batch:
        raise ValueError(f"len(q) = {len(q)}, allowed: {cache.batch}, the requests of the cache")
    if q.shape[2] != cache.head_dim:
        raise ValueError(f"q.shape[2] = {q.shape[2]}, allowed: {cache.head_dim}, the head_dim of k")
    if q.shape[1] == 0 or q.shape[1] % cache.kv_heads:
        raise ValueError(
            f"q.shape[1] = {q.shape[1]} query heads,"
            f" allowed: a multiple of {cache.kv_heads} KV heads"
        )


def _scale(scale: float | None, head_dim: int) -> float:
    value = 1 / math.sqrt(head_dim) if scale is None else scale
    if not 0 < value < math.inf:
        raise ValueError(f"scale = {value}, allowed: a positive number")
    return value


def _out_dtype(q: torch.Tensor, policy: NumericPolicy) -> torch.dtype:
    return {"input": q.dtype, "fp32": torch.float32, "fp64": torch.float64}[policy.out]


def _output(
    name: str,
    given: torch.Tensor | None,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    if given is None:
        return torch.empty(shape, dtype=dtype, device=device)
    require_device(name, given, device)
    if given.dtype != dtype:
        raise ValueError(f"{name}.dtype = {given.dtype}, allowed: {dtype}")
    if given.shape != shape or not given.is_contiguous():
        raise ValueError(
            f"{name}: shape {tuple(given.shape)}, strides {given.stride()},"
            f" allowed: {tuple(shape)}, contiguous"
        )
    if name == "out":
        require_rows(name, given)
    return given
