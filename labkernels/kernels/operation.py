"""The interface of an operation: code for all operations is written once, against it."""

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
    """The tensors of a workload on one device, the same for every implementation.

    arguments: what the verb takes, in its order.
    """

    workload: Workload
    variant: AttentionVariant
    scale: float

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the verb, in its order."""

    def problem(self, rows: Sequence[int] | None = None):
        """The same attention as a numerics problem on this device: whole, or some query tokens.

        Each of some tokens becomes a request with one query token and the keys that it sees.
        """


@dataclass(frozen=True)
class BitCase:
    """One run with recorded bits: a compiled variant on a workload, and the verb's options."""

    instance: Instance
    workload: Any  # that of the operation
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, Any]:
        """The full options of the step: kernel, tile, policy, and the options of the case."""
        instance = self.instance
        named = {"kernel": instance.kernel, "tile": instance.tile.label, "policy": instance.policy}
        return named | dict(self.options)


@dataclass(frozen=True)
class Operation:
    """Decode, prefill, MLA decode, backward or append.

    inputs: a workload's tensors from a Draw of `random_inputs`. step(inputs, **options): the
    prepared step on them. bit_cases(kernel): runs of a CUDA kernel that have checksums in data/.
    """

    name: str
    workload: type[Any]
    inputs: Callable[..., Any]
    step: Callable[..., Any]
    bit_cases: Callable[..., Iterable[BitCase]]


@cache
def operations() -> dict[str, Operation]:
    """The OPERATION of every operation, by name, in the order of the folders."""
    package = importlib.import_module("labkernels.kernels")
    folders = (found.name for found in pkgutil.iter_modules(package.__path__) if found.ispkg)
    modules = (f"{package.__name__}.{folder}.operation" for folder in folders)
    every = (importlib.import_module(m).OPERATION for m in modules if importlib.util.find_spec(m))
    return {operation.name: operation for operation in every}
