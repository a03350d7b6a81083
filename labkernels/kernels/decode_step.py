"""A decode made ready: what every runner takes, and how it is cut."""

import math
from dataclasses import dataclass

import torch

from labkernels.hardware import Gpu
from labkernels.kernels.decode_plan import MAX_SPLITS, keys_per_split
from labkernels.kernels.paged_kv import PagedKV
from labkernels.kernels.spec import Instance, KernelSpec
from labkernels.kernels.step import Plan


@dataclass(frozen=True, eq=False)
class DecodeRequest:
    """A decode that has been checked: tensors, the variant to run, and the GPU to plan for.

    On a CPU, `gpu` is the GPU whose plan and tensor-core arithmetic the CPU build follows, and
    `checks` turns its race and uninitialised-read checker on.
    """

    spec: KernelSpec
    instance: Instance
    q: torch.Tensor
    cache: PagedKV
    scale: float
    keys_per_split: int | None
    out: torch.Tensor
    lse2: torch.Tensor
    gpu: Gpu
    checks: bool

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.q.shape[1] // self.cache.kv_heads

    @property
    def head_slices(self) -> int:
        """Blocks that share the query heads of a KV head."""
        return math.ceil(self.group / self.instance.rows)

    @property
    def units(self) -> int:
        """Blocks of an unsplit decode."""
        return self.cache.batch * self.cache.kv_heads * self.head_slices

    @property
    def on_gpu(self) -> bool:
        """Whether the tensors live on a GPU."""
        return self.q.device.type == "cuda"


def cut(request: DecodeRequest, *, slots: int, step: int) -> tuple[int, int]:
    """Keys a split and splits a request, as asked for or chosen from shapes alone.

    Raises: ValueError if keys_per_split makes more splits than a grid can have.
    """
    longest = request.cache.max_kv_len
    keys = request.keys_per_split or keys_per_split(
        units=request.units,
        max_kv_len=longest,
        slots=slots,
        sm_count=request.gpu.sm_count,
        step=step,
    )
    splits = max(1, math.ceil(longest / keys))
    if splits > MAX_SPLITS:
        raise ValueError(
            f"keys_per_split = {keys}, allowed: at least {math.ceil(longest / MAX_SPLITS)} for"
            f" {longest} keys, which is {MAX_SPLITS} splits"
        )
    return keys, splits


def make_plan(
    request: DecodeRequest,
    *,
    keys_per_split: int,
    splits: int,
    blocks_per_sm: int,
    smem_bytes: int,
    registers: int | None,
    cpu: str,
    launches: int = 1,
) -> Plan:
    """The plan of a request that has been cut; `cpu` names the machine that is not a GPU."""
    blocks = request.units * splits
    return Plan(
        kernel=request.spec.name,
        tile=request.instance.tile.label,
        policy=request.instance.policy.label,
        machine=request.gpu.name if request.on_gpu else cpu,
        splits=splits,
        keys_per_split=keys_per_split,
        blocks=blocks,
        blocks_per_sm=blocks_per_sm,
        waves=blocks / (blocks_per_sm * request.gpu.sm_count),
        smem_bytes=smem_bytes,
        registers=registers,
        launches=launches,
        batch_invariant=request.keys_per_split is not None,
    )


def partial_states(request: DecodeRequest, splits: int) -> dict[str, torch.Tensor]:
    """Partial States of every split, uninitialised, and tickets at rest, as DecodeParams names."""
    if splits == 1:
        return {}
    batch, q_heads, head_dim = request.q.shape
    shape, device = (batch, q_heads, splits), request.q.device
    return {
        "partial_o": torch.empty((*shape, head_dim), dtype=torch.float32, device=device),
        "partial_m": torch.empty(shape, dtype=torch.float32, device=device),
        "partial_l": torch.empty(shape, dtype=torch.float32, device=device),
        "tickets": torch.zeros(request.units, dtype=torch.int32, device=device),
    }
