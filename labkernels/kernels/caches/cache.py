"""What every cache of keys and values has: tensors whose facts are checked once."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from labkernels.kernels.checks import facts, once_per_facts, require_place


class Cache(ABC):
    """Tensors by name, of which the first two are the pools that copies start in.

    facts: what stands for all that a call's choices depend on of the tensors.
    """

    facts: object
    layout: ClassVar[str]

    def __post_init__(self) -> None:
        if torch.compiler.is_compiling():
            return  # a graph's operator makes the cache again, of tensors that have memory
        tensors = vars(self)
        (first, pool), (second, other), *_ = tensors.items()
        found = (type(self), *facts(*tensors.values(), names=tuple(tensors)))
        tensors["facts"] = once_per_facts(found, self.check_tensors)
        require_place(first, pool)
        require_place(second, other)

    @abstractmethod
    def check_tensors(self) -> None:
        """Raise ValueError unless shapes, strides, types and devices serve kernels."""

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by name."""
        return {name: x for name, x in vars(self).items() if name != "facts"}
