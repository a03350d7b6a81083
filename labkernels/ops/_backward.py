"""The verb `backward`: the gradients of a prefill over ragged K and V."""

import importlib
from dataclasses import dataclass

import torch

from labkernels.hardware import Gpu
from labkernels.kernels.backward_step import BackwardRequest, BackwardStep
from labkernels.kernels.paged_kv import MAX_KEYS, require_device, require_rows
from labkernels.kernels.prefill_plan import Lengths
from labkernels.kernels.ragged_kv import RaggedKV, read_lengths, require_cu_seqlens
from labkernels.kernels.spec import Instance, KernelSpec, NumericPolicy
from labkernels.kernels.step import Plan
from labkernels.ops import _arguments as arguments


@dataclass(frozen=True, eq=False)
class Gradients:
    """Shapes: dq [total_q, q_heads, head_dim], dk, dv [total_k, kv_heads, head_dim]; the plan."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    plan: Plan


def backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse2: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    causal: bool = False,
    deterministic: bool = False,
    kernel: str | KernelSpec | None = None,
    tile: str | None = None,
    policy: NumericPolicy | None = None,
    scale: float | None = None,
    target: str | None = None,
    checks: bool = False,
) -> Gradients:
    """Gradients of q, K and V where the loss's gradient of a prefill's output is dout.

    deterministic: every sum has one order, so that the same call gives the same bits; it costs up
    to two products more. Otherwise the order of dq's sum over tiles of keys is the GPU's.
    Shapes: q, out, dout [total_q, q_heads, head_dim], k, v [total_k, kv_heads, head_dim], fp16 or
    bf16; lse2 [total_q, q_heads] fp32, as `prefill` gives it with out; cu_seqlens_q, cu_seqlens_k
    [batch + 1] int32. A causal mask is aligned to the end, as in `prefill`.
    Units: scale multiplies q k (default 1 / sqrt(head_dim)); lse2 is in base 2.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.
    """
    step = backward_step(
        dout,
        q,
        k,
        v,
        out,
        lse2,
        cu_seqlens_q,
        cu_seqlens_k,
        causal=causal,
        deterministic=deterministic,
        kernel=kernel,
        tile=tile,
        policy=policy,
        scale=scale,
        target=target,
        checks=checks,
    )
    step.run()
    return Gradients(step.dq, step.dk, step.dv, step.plan)


def backward_step(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse2: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    causal: bool = False,
    deterministic: bool = False,
    kernel: str | KernelSpec | None = None,
    tile: str | None = None,
    policy: NumericPolicy | None = None,
    scale: float | None = None,
    dq: torch.Tensor | None = None,
    dk: torch.Tensor | None = None,
    dv: torch.Tensor | None = None,
    target: str | None = None,
    checks: bool = False,
) -> BackwardStep:
    """Prepare a backward pass that runs again and again; the lengths are read here, once.

    dq, dk, dv: where the gradients go, if they are not to be fresh tensors.
    Raises: ValueError naming the argument, its value and what is allowed.
    """
    kv = RaggedKV(k, v, cu_seqlens_k)
    _check_rows(q, kv, cu_seqlens_q, dout=dout, out=out)
    _check_lse2(lse2, q)
    gpu = arguments.target_gpu(q.device, target)
    spec, why = arguments.chosen_kernel(kernel, "backward", gpu)
    instance = _instance(spec, q, kv, gpu, tile, policy, deterministic)
    request = BackwardRequest(
        spec=spec,
        why=why,
        instance=instance,
        dout=dout,
        q=q,
        kv=kv,
        out=out,
        lse2=lse2,
        cu_seqlens_q=cu_seqlens_q,
        lengths=Lengths(read_lengths("cu_seqlens_q", cu_seqlens_q, len(q)), kv.read_lengths()),
        causal=causal,
        scale=arguments.scale_of(scale, q.shape[2]),
        dq=arguments.output("dq", dq, q.shape, q.dtype, q.device),
        dk=arguments.output("dk", dk, k.shape, q.dtype, q.device),
        dv=arguments.output("dv", dv, v.shape, q.dtype, q.device),
        gpu=gpu,
        checks=checks,
    )
    return importlib.import_module(spec.runner).prepare(request)


def _instance(
    spec: KernelSpec,
    q: torch.Tensor,
    kv: RaggedKV,
    gpu: Gpu,
    tile: str | None,
    policy: NumericPolicy | None,
    deterministic: bool,
) -> Instance:
    """The variant of that tile, or of the preferred one that adds up as asked and fits the GPU."""
    if tile is None and q.shape[2] in spec.head_dims:
        dq, policy = "ordered" if deterministic else "atomic", policy or spec.policies[0]
        options = spec.instances(
            dtype=arguments.DTYPES[q.dtype], head_dim=q.shape[2], rows=1, policy=policy, kv="ragged"
        )
        fitting = [o.tile for o in options if spec.fits(o, gpu)]
        # a kernel that adds up in one order alone does so for those who did not ask, too
        tile = next((t for t in fitting if t.dq == dq), fitting[0]).label
    group = q.shape[1] // kv.kv_heads
    found = arguments.instance_of(
        spec, q, group=group, gpu=gpu, tile=tile, policy=policy, kv="ragged"
    )
    if deterministic and found.tile.dq != "ordered":
        raise ValueError(f"tile = {tile!r}, allowed with deterministic: one whose dq is ordered")
    return found


def _check_rows(q: torch.Tensor, kv: RaggedKV, cu_seqlens_q: torch.Tensor, **alike) -> None:
    if q.dim() != 3:
        raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: [total_q, q_heads, head_dim]")
    if kv.head_dim != kv.head_dim_v:
        raise ValueError(f"v.shape[-1] = {kv.head_dim_v}, allowed: {kv.head_dim}, as k")
    arguments.check_heads(q, kv.head_dim, kv.kv_heads)
    for name, tensor in {"q": q, **alike}.items():
        if tensor.dtype != kv.k.dtype:
            raise ValueError(f"{name}.dtype = {tensor.dtype}, allowed: {kv.k.dtype}, as k")
        if tensor.shape != q.shape:
            raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: {tuple(q.shape)}")
        require_device(name, tensor, kv.k.device)
        require_rows(name, tensor)
    if q.shape[0] * q.shape[1] > MAX_KEYS:
        raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: up to {MAX_KEYS} rows of heads")
    require_cu_seqlens("cu_seqlens_q", cu_seqlens_q, kv.k.device)
    if len(cu_seqlens_q) != kv.batch + 1:
        raise ValueError(
            f"len(cu_seqlens_q) = {len(cu_seqlens_q)}, allowed: {kv.batch + 1}, as cu_seqlens_k"
        )


def _check_lse2(lse2: torch.Tensor, q: torch.Tensor) -> None:
    require_device("lse2", lse2, q.device)
    if lse2.dtype != torch.float32:
        raise ValueError(f"lse2.dtype = {lse2.dtype}, allowed: torch.float32")
    if lse2.shape != q.shape[:2] or not lse2.is_contiguous():
        raise ValueError(
            f"lse2: shape {tuple(lse2.shape)}, strides {lse2.stride()},"
            f" allowed: {tuple(q.shape[:2])}, contiguous"
        )
