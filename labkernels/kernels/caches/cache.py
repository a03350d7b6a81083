"""The base of all caches of keys and values: tensors whose facts are checked once."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from labkernels.kernels.checks import facts, once_per_facts, require_place, resolved


class Cache(ABC):
    """Tensors by name; the first two are the pools that kernels copy from.

    facts: everything about the tensors that the choices of a call depend on. is_written: whether a
    verb writes them; if none does, a negation that torch has put off is carried out in a copy.
    """

    facts: object
    layout: ClassVar[str]
    is_written: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if torch.compiler.is_compiling():
            return  # the operator in the graph makes the cache again, from tensors that have memory
        tensors = vars(self)
        if not self.is_written and True in [getattr(x, "is_neg", bool)() for x in tensors.values()]:
            tensors.update({name: resolved(x) for name, x in tensors.items()})
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


class Heads:
    """K and V of several heads: the channels are the last dimension, the heads the one before."""

    k: torch.Tensor
    v: torch.Tensor

    @property
    def kv_heads(self) -> int:
        """Heads of K and V."""
        return self.k.shape[-2]

    @property
    def head_dim(self) -> int:
        """Channels of K."""
        return self.k.shape[-1]

    @property
    def head_dim_v(self) -> int:
        """Channels of V."""
        return self.v.shape[-1]
