"""The choice of kernel, tile and policy for a call: a function of hashable facts, computed once."""

import functools
from dataclasses import dataclass, replace
from typing import Any, Self

from labkernels.cuda.compiler.specialization import Specialization
from labkernels.hardware import Gpu
from labkernels.kernels.kernel import Instance, Kernel, Shape
from labkernels.kernels.registry import kernels_of
from labkernels.policy import NumericPolicy


@dataclass(frozen=True)
class Ask:
    """What the caller asks for. deterministic: None if the operation has no such option."""

    kernel: str | Kernel | None = None
    tile: str | None = None
    policy: NumericPolicy | None = None
    deterministic: bool | None = None


ANYTHING = Ask()


@dataclass(frozen=True, eq=False)
class Choice:
    """A kernel and its compiled variant, how many blocks a GPU holds, and why it was chosen.

    specializations: what is compiled, first the kernel that the plan describes; empty for Triton
    and torch. slots: blocks that the whole GPU holds at once. facts: fields of the plan.
    """

    kernel: Kernel
    instance: Instance
    specializations: tuple[Specialization, ...]
    slots: int
    facts: dict[str, Any]

    def with_numbers(self, numbers: tuple[tuple[str, int], ...]) -> Self:
        """Return the choice with further constants of its CUDA sources."""
        compiled = (replace(x, numbers=(*x.numbers, *numbers)) for x in self.specializations)
        return replace(self, specializations=tuple(compiled))


@functools.cache
def choose(operation: str, shape: Shape, gpu: Gpu, ask: Ask = ANYTHING) -> Choice:
    """Return the named kernel, or else the operation's best kernel for the shape and GPU.

    Raises: ValueError if no kernel, or not the named kernel, supports the call, with the value,
    what is allowed, and the kernel that would be chosen.
    """
    kernel, why = _kernel(operation, shape, gpu, ask)
    instance = _instance(kernel, shape, gpu, ask)
    per_sm = kernel.blocks_per_sm(instance, gpu)
    compiled = kernel.specializations(instance)
    how = "named by the caller" if ask.tile else "the first that fits"
    facts = {
        "kernel": kernel.name,
        "tile": instance.tile.label,
        "policy": instance.policy.label,
        "blocks_per_sm": per_sm,
        "smem_bytes": compiled[0].smem_bytes if compiled else 0,
        "why": f"{why}; tile {instance.tile.label}: {how}",
    }
    return Choice(kernel, instance, compiled, per_sm * gpu.sm_count, facts)


@functools.cache
def chooses_alike(operation: str, shape: Shape, gpu: Gpu, ask: Ask, most_rows: int) -> bool:
    """Return whether kernel and tile stay the same for every length of the longest request."""
    first, last = ((rows - 1).bit_length() for rows in (shape.group, most_rows))
    shapes = (replace(shape, rows=1 << i) for i in range(first, last + 1))
    choices = [choose(operation, each, gpu, ask) for each in shapes]
    return len({(choice.kernel.name, choice.instance.tile) for choice in choices}) == 1


def _kernel(operation: str, shape: Shape, gpu: Gpu, ask: Ask) -> tuple[Kernel, str]:
    ranked, asked = preferred(operation), ask.kernel
    against = {kernel: _against(kernel, shape, gpu) for kernel in ranked}
    able = [kernel for kernel, reason in against.items() if reason is None]
    of_policy = [kernel for kernel in able if ask.policy in (None, *kernel.policies)]
    best = next(iter(of_policy or able), None)  # without one of the policy, the first refuses it
    smem = f"{gpu.smem_per_block_max_bytes:,} B of shared memory per block"
    facts = f"{gpu.name} ({gpu.arch}, {smem})"
    if asked is None:
        if best is None:
            refused = next(filter(None, (kernel.refuses(shape) for kernel in ranked)), None)
            least = min((kernel.needs for kernel in ranked), key=lambda needs: needs.first)
            raise ValueError(refused or f"{operation} needs {least}, this is {facts}")
        passed = "".join(f"; {reason}" for reason in against.values() if reason)
        passed += "" if best is able[0] else f"; {able[0].name} lacks the policy asked for"
        order = ", ".join(kernel.name for kernel in ranked)
        return best, f"{best.name}: the first of {order} that an {facts} can run{passed}"
    kernel = asked if not isinstance(asked, str) else _named(asked, operation)
    lacks, refused = missing(kernel, gpu), kernel.refuses(shape)
    instead = f"{best.name}, which would be chosen if none were named" if best else "none"
    if lacks:
        raise ValueError(f"kernel = {kernel.name!r} {lacks}, this is {facts}, allowed: {instead}")
    if refused:
        raise ValueError(f"{refused}; of the kernels: {instead}" if best else refused)
    return kernel, f"{kernel.name}: named by the caller; {facts} can run it"


def _against(kernel: Kernel, shape: Shape, gpu: Gpu) -> str | None:
    lacks, slow = missing(kernel, gpu), kernel.yields(shape)
    if lacks or kernel.refuses(shape):
        return f"{kernel.name} {lacks}" if lacks else kernel.refuses(shape)
    return f"{kernel.name} {slow}" if slow else None


def _named(name: str, operation: str) -> Kernel:
    known = kernels_of(operation)
    if name not in known:
        raise ValueError(f"kernel = {name!r}, allowed: {', '.join(known)}")
    return known[name]


def _instance(kernel: Kernel, shape: Shape, gpu: Gpu, ask: Ask) -> Instance:
    tile = ask.tile
    if ask.deterministic is not None and tile is None:
        # a kernel with only one order of its sums is deterministic without being asked
        dq = "ordered" if ask.deterministic else "atomic"
        options = kernel.instances(shape, ask.policy)
        wanted = [o.tile.label for o in options if kernel.fits(o, gpu) and o.tile.dq == dq]
        tile = wanted[0] if wanted else None
    found = kernel.instance(shape, ask.policy, tile=tile, gpu=gpu)
    if ask.deterministic and found.tile.dq != "ordered":
        raise ValueError(f"tile = {tile!r}, allowed with deterministic: one whose dq is ordered")
    return found


def preferred(operation: str) -> list[Kernel]:
    """Return an operation's CUDA kernels: newest instructions first, children before parents."""
    listed = reversed(kernels_of(operation, "cuda").values())
    return sorted(listed, key=lambda kernel: kernel.needs.first, reverse=True)


@functools.cache
def missing(kernel: Any, gpu: Gpu) -> str | None:
    """Return what a GPU lacks for a kernel, as a phrase; None if the GPU can run it."""
    if not kernel.needs.include(gpu.arch):
        return f"needs {kernel.needs}"
    least = None
    for head_dim in kernel.head_dims:
        for option in kernel.instances(kernel.shape(head_dim=head_dim, rows=1)):
            if kernel.fits(option, gpu):
                return None
            bytes_ = kernel.smem(option).total
            least = bytes_ if least is None else min(least, bytes_)
    return f"needs {least:,} B of shared memory per block"
