"""What every verb does with its arguments: checks, defaults, the variant of a kernel, outputs."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkernels import hardware
from labkernels.kernels import spec as specs
from labkernels.kernels.paged_kv import MAX_KEYS, require_device, require_rows
from labkernels.kernels.prefill_plan import MAX_SPLITS
from labkernels.kernels.spec import Instance, KernelSpec, NumericPolicy
from labkernels.kernels.step import Plan

DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
MAX_BATCH = 65_535  # requests lie along grid z
DEFAULT_TARGET = "h200"  # whose plan and arithmetic a machine without a GPU follows


@dataclass(frozen=True, eq=False)
class Result:
    """Shapes: out [rows, q_heads, head_dim], lse2 [rows, q_heads] fp32, base 2; and the plan.

    A row is a request of a decode, a query token of a prefill.
    """

    out: torch.Tensor
    lse2: torch.Tensor
    plan: Plan


def kernel_named(name: str | KernelSpec, family: str, gpu: hardware.Gpu) -> KernelSpec:
    """The kernel of that family and name, or the one whose spec it is, if it runs on the GPU."""
    spec = _named(name, family)
    if not spec.runs_on(gpu.arch):
        raise ValueError(
            f"kernel = {spec.name!r} needs {spec.needs}, this GPU is {gpu.arch},"
            " allowed: tensors on the CPU, where its CPU build runs"
        )
    return spec


def _named(name: str | KernelSpec, family: str) -> KernelSpec:
    if isinstance(name, KernelSpec):
        return name
    known = {spec.name: spec for spec in specs.discover().values() if spec.family == family}
    if name not in known:
        raise ValueError(f"kernel = {name!r}, allowed: {', '.join(known)}")
    return known[name]


def chosen_kernel(
    name: str | KernelSpec | None,
    family: str,
    gpu: hardware.Gpu,
    declines: Callable[[KernelSpec], str | None] = lambda spec: None,
    *,
    rows: int = specs.MANY_ROWS,
) -> tuple[KernelSpec, str]:
    """The kernel that is named, or else the family's best that the GPU can run; and why it.

    declines: what of the caller's tensors a kernel cannot do, in words, or None. rows: query rows
    of the longest request.
    Raises: ValueError for a named kernel that the GPU cannot run, or not on these tensors: what it
    lacks, and what would be chosen in its place.
    """
    ranked = preferred(family)
    against = {
        spec.name: lack(spec, gpu) or declines(spec) or _too_few(spec, rows) for spec in ranked
    }
    best = next(spec for spec in ranked if against[spec.name] is None)
    facts = f"{gpu.name} ({gpu.arch}, {gpu.smem_per_block_max_bytes:,} B of shared memory a block)"
    if name is None:
        passed = "".join(f"; {n} {reason}" for n, reason in against.items() if reason)
        order = ", ".join(against)
        return best, f"{best.name}: the first of {order} that an {facts} can run{passed}"
    spec = _named(name, family)
    missing = lack(spec, gpu) or declines(spec)
    if missing:
        raise ValueError(
            f"kernel = {spec.name!r} {missing}, this is {facts}, allowed: {best.name}, which would"
            " be chosen if none were named"
        )
    return spec, f"{spec.name}: named by the caller; {facts} can run it"


def _too_few(spec: KernelSpec, rows: int) -> str | None:
    if rows >= spec.from_rows:
        return None
    return f"is for {spec.from_rows} rows or more, not for {rows}"


def preferred(family: str) -> list[KernelSpec]:
    """A family's CUDA kernels: newest instructions first, then children before parents."""
    listed = [s for s in specs.discover().values() if (s.family, s.language) == (family, "cuda")]
    return sorted(reversed(listed), key=lambda spec: spec.min_arch, reverse=True)


def lack(spec: KernelSpec, gpu: hardware.Gpu) -> str | None:
    """What a GPU lacks for a kernel, in words, or None if it can run it."""
    if not spec.runs_on(gpu.arch):
        return f"needs {spec.needs}"
    policy, least = spec.policies[0], None
    for head_dim in spec.head_dims:
        for option in spec.instances(dtype="bf16", head_dim=head_dim, rows=1, policy=policy):
            if spec.fits(option, gpu):
                return None
            bytes_ = spec.smem(option).total
            least = bytes_ if least is None else min(least, bytes_)
    return f"needs {least:,} B of shared memory a block"


def instance_of(
    spec: KernelSpec,
    q: torch.Tensor,
    *,
    group: int,
    gpu: hardware.Gpu,
    tile: str | None,
    policy: NumericPolicy | None,
    tokens: int = 1,
    kv: str = "paged",
    head_dim: int | None = None,
) -> Instance:
    """The variant of a kernel for a query tensor; tile and policy default to the preferred ones.

    head_dim: channels of Q and K, if they are not all in this tensor.
    """
    head_dim = head_dim or q.shape[-1]
    chosen = None
    if tile is not None and head_dim in spec.head_dims:
        rows = spec.served_rows(group, tokens)
        chosen = spec.tile_named(tile, head_dim=head_dim, rows=rows, policy=policy)
    return spec.instance(
        dtype=DTYPES[q.dtype],
        head_dim=head_dim,
        group=group,
        tokens=tokens,
        tile=chosen,
        policy=policy,
        kv=kv,
        gpu=gpu,
    )


def target_gpu(device: torch.device, target: str | None) -> hardware.Gpu:
    """The GPU to plan for: the tensors' own, or on a CPU the one whose arithmetic is followed."""
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"q.device = {device}, allowed: cpu, cuda")
    if device.type == "cpu":
        return hardware.gpu(target or DEFAULT_TARGET)
    from labkernels.cuda import device as devices

    return devices.planning_gpu(device.index)


def scale_of(scale: float | None, head_dim: int | None = None) -> float:
    """The softmax scale, by default 1 / sqrt(head_dim)."""
    value = 1 / math.sqrt(head_dim) if scale is None else scale
    if not 0 < value < math.inf:
        raise ValueError(f"scale = {value}, allowed: a positive number")
    return value


def check_count(name: str, value: int | None, most: int) -> None:
    """Raise ValueError unless an optional count is 1 to `most`."""
    if value is not None and not 1 <= value <= most:
        raise ValueError(f"{name} = {value}, allowed: 1 to {most}")


def check_cut(splits: int | None, keys_per_split: int | None) -> None:
    """Raise ValueError unless at most one of the two ways to cut the keys is asked for."""
    check_count("splits", splits, MAX_SPLITS)
    check_count("keys_per_split", keys_per_split, MAX_KEYS)
    if splits is not None and keys_per_split is not None:
        raise ValueError(
            f"splits = {splits} and keys_per_split = {keys_per_split}, allowed: one of the two"
        )


def check_heads(q: torch.Tensor, head_dim: int, kv_heads: int) -> None:
    """Raise ValueError unless q's heads and channels go with those of K."""
    if q.shape[2] != head_dim:
        raise ValueError(f"q.shape[2] = {q.shape[2]}, allowed: {head_dim}, the head_dim of k")
    if q.shape[1] == 0 or q.shape[1] % kv_heads:
        raise ValueError(
            f"q.shape[1] = {q.shape[1]} query heads, allowed: a multiple of {kv_heads} KV heads"
        )


def out_dtype(q: torch.Tensor, policy: NumericPolicy) -> torch.dtype:
    """The output's dtype under a policy."""
    return {"input": q.dtype, "fp32": torch.float32, "fp64": torch.float64}[policy.out]


def output(
    name: str,
    given: torch.Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """The caller's output tensor, checked, or a fresh one."""
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
