"""Random tensors with given statistics, and pages scattered over a pool."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch

from labkernels.numerics.arrays import as_float64
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.variant import AttentionVariant

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Draw(ABC):
    """A source of random tensors on a device; the same seed gives the same sequence of tensors."""

    seed: int
    device: str

    @abstractmethod
    def tensor(self, dtype: str, *shape: int) -> torch.Tensor:
        """Return a tensor of about standard normal numbers.

        Raises: ValueError if the dtype is not fp16 or bf16.
        """

    @abstractmethod
    def order(self, n: int) -> torch.Tensor:
        """Return the numbers below n, in random order: int32 [n]."""

    def next(self) -> Self:
        """Return a separate source, with the next seed."""
        return replace(self, seed=self.seed + 1)


@dataclass(frozen=True)
class Normal(Draw):
    """Standard normal numbers by torch's generator, whose bits depend on torch and the device."""

    device: str = "cuda"

    @cached_property
    def _generator(self) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(self.seed)

    def tensor(self, dtype: str, *shape: int) -> torch.Tensor:
        """Return a tensor of standard normal numbers.

        Raises: ValueError if the dtype is not fp16 or bf16.
        """
        empty = torch.empty(shape, device=self.device, dtype=_dtype(dtype))
        return empty.normal_(generator=self._generator)

    def order(self, n: int) -> torch.Tensor:
        """Return the numbers below n, in random order: int32 [n]."""
        return torch.randperm(n, generator=self._generator, device=self.device).int()


@dataclass(frozen=True)
class ExactNormal(Draw):
    """Nearly normal numbers with the same bits on every machine and under every version of torch.

    Elements are sums of four uniform 16-bit integers, centred and scaled by a power of two: nearly
    normal with a standard deviation of 1.15, exact until their one rounding to the dtype.
    """

    device: str = "cpu"

    @cached_property
    def _bits(self) -> np.random.PCG64:
        return np.random.PCG64(self.seed)

    def tensor(self, dtype: str, *shape: int) -> torch.Tensor:
        """Return a tensor of nearly normal numbers.

        Raises: ValueError if the dtype is not fp16 or bf16.
        """
        kind = _dtype(dtype)
        words = self._bits.random_raw(math.prod(shape)).view(np.uint16).reshape(*shape, 4)
        centred = words.astype(np.int64).sum(-1) - 2 * 0xFFFF
        exact = torch.from_numpy(centred.astype(np.float32) * np.float32(2**-15))
        return exact.to(kind).to(self.device)

    def order(self, n: int) -> torch.Tensor:
        """Return the numbers below n, in random order: int32 [n]."""
        order = np.argsort(self._bits.random_raw(n), kind="stable").astype(np.int32)
        return torch.from_numpy(order).to(self.device)


@dataclass(frozen=True)
class NoNumbers(Draw):
    """Tensors on torch's meta device, which have shapes but no memory: for plans."""

    seed: int = 0
    device: str = "meta"

    def tensor(self, dtype: str, *shape: int) -> torch.Tensor:
        """Return a tensor without contents.

        Raises: ValueError if the dtype is not fp16 or bf16.
        """
        return torch.empty(shape, device=self.device, dtype=_dtype(dtype))

    def order(self, n: int) -> torch.Tensor:
        """Return the numbers below n: int32 [n]."""
        return torch.arange(n, dtype=torch.int32)


def n_pages(kv_lens: Sequence[int], page_size: int) -> int:
    """Return the pages that requests of these lengths fill."""
    return sum(-(-length // page_size) for length in kv_lens)


def scattered(kv_lens: Sequence[int], page_size: int, draw: Draw) -> torch.Tensor:
    """Return the page table of requests whose pages lie in random order."""
    pages_of = torch.tensor([-(-length // page_size) for length in kv_lens])
    table = torch.zeros(len(kv_lens), max(1, int(pages_of.max())), dtype=torch.int32)
    used = torch.arange(table.shape[1]) < pages_of[:, None]
    table[used] = draw.order(n_pages(kv_lens, page_size)).cpu()
    return table.to(draw.device)


def int32(numbers: Sequence[int], draw: Draw) -> torch.Tensor:
    """Return numbers as a tensor on the source's device."""
    return torch.tensor(numbers, dtype=torch.int32, device=draw.device)


def sums(lengths: Sequence[int], draw: Draw) -> torch.Tensor:
    """Return where each request of these lengths begins, and the last one's end: int32 [n + 1]."""
    return int32([0, *itertools.accumulate(lengths)], draw)


def arrays(*tensors: torch.Tensor) -> list:
    """Return tensors for numerics: a GPU's as they are, a CPU's as NumPy arrays, for speed."""
    return [x if x.is_cuda else as_float64(x) for x in tensors]


def problem_of_rows(problem: Problem, rows: Sequence[int] | None) -> Problem:
    """Return the whole problem, or one request per token of `rows`, with keys up to its last."""
    if rows is None:
        return problem
    chosen = np.asarray(rows)
    table = problem.page_table[problem.request_of[chosen]]
    pools, keys = (problem.k_pool, problem.v_pool), problem.n_keys[chosen]
    variant, heads = problem.variant, np.arange(problem.q.shape[1])
    return Problem(
        problem.q[list(rows)],
        *pools,
        table,
        keys,
        scale=problem.scale,
        variant=variant and variant.part(chosen, heads, int(keys.max(initial=0))),
        places=problem.places_here[chosen],
    )


def variant_options(variant: AttentionVariant, q_heads: int, draw: Draw) -> dict[str, Any]:
    """Return a variant as the options of a verb, without its causal mask, and draw its sinks.

    Draw these after the other tensors, which then do not depend on the variant. Sinks are about
    standard normal. The slope of head i is 2^(-8 i / q_heads), i from 1.
    Source: ALiBi, Press et al., for the slopes.
    """
    given = ("window_left", "window_right", "soft_cap")
    options = {name: getattr(variant, name) for name in given}
    if variant.alibi:
        of_head = torch.arange(1, q_heads + 1, dtype=torch.float64)
        options["alibi"] = torch.exp2(-8 * of_head / q_heads).float().to(draw.device)
    if variant.sinks:
        options["sinks"] = draw.tensor("bf16", q_heads).float()
    if variant.reach is not None:
        options["bias"] = draw.tensor("bf16", q_heads, 2 * variant.reach + 1).float()
    return {name: value for name, value in options.items() if value is not None}


def variant_tensors(options: Mapping[str, Any]) -> VariantTensors | None:
    """Return the variant of the options of a verb for numerics; None for plain attention."""
    found = {name: as_float64(x) if torch.is_tensor(x) else x for name, x in options.items()}
    if "bias" in found:
        found["by_distance"] = found.pop("bias")
    return VariantTensors(**found) if found else None


def _dtype(dtype: str) -> torch.dtype:
    if dtype not in DTYPES:
        raise ValueError(f"dtype = {dtype!r}, allowed: {', '.join(DTYPES)}")
    return DTYPES[dtype]
