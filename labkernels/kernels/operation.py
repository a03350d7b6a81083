"""The interface of an operation, against which code for all operations is written once."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from labkernels.kernels.kernel import Instance
from labkernels.kernels.workload import Workload
from labkernels.variant import AttentionVariant


class Inputs(Protocol):
    """The tensors of a workload on one device, the same for every implementation."""

    workload: Workload
    variant: AttentionVariant
    scale: float

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the verb, in its order."""

    def problem(self, rows: Sequence[int] | None = None):
        """Return the same attention as a numerics problem on this device.

        rows: if given, only these query tokens. Each of them becomes a request with one query token
        and the keys that the token sees.
        """


@dataclass(frozen=True)
class BitCase:
    """One run with recorded bits: a compiled variant on a workload, and the verb's options."""

    instance: Instance
    workload: Any  # of the operation's class of workloads
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, Any]:
        """All options of the step: kernel, tile, policy, and the options of the case."""
        instance = self.instance
        named = {"kernel": instance.kernel, "tile": instance.tile.label, "policy": instance.policy}
        return named | dict(self.options)


@dataclass(frozen=True)
class Operation:
    """Decode, prefill, prefill in 8 bits, MLA decode, backward or append.

    inputs(workload, draw): the workload's tensors, from a Draw of `random_inputs`. step(inputs,
    **options): the prepared step on these tensors. bit_cases(kernel): the runs of a CUDA kernel
    whose checksums are recorded in data/.
    """

    name: str
    workload: type[Any]
    inputs: Callable[..., Any]
    step: Callable[..., Any]
    bit_cases: Callable[..., Iterable[BitCase]]


@cache
def operations() -> dict[str, Operation]:
    """Return every Operation of the folders' operation.py by name, in the order of the folders."""
    package = importlib.import_module("labkernels.kernels")
    folders = (found.name for found in pkgutil.iter_modules(package.__path__) if found.ispkg)
    modules = (f"{package.__name__}.{folder}.operation" for folder in folders)
    found = (importlib.import_module(m) for m in modules if importlib.util.find_spec(m))
    every = (x for module in found for x in vars(module).values() if isinstance(x, Operation))
    return {operation.name: operation for operation in every}
