"""Arguments of other libraries: which must keep their default, and what a verb makes of others."""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

LN2 = math.log(2)


class Fixed:
    """Annotates an argument that has an effect in the original alone: here it keeps its default."""


def keeps_fixed(function: Callable) -> Callable:
    """Return the function, which then refuses an argument annotated `Fixed` with another value.

    Raises: ValueError naming the argument, its value and what is allowed.

    >>> @keeps_fixed
    ... def attend(q, dropout_p: Fixed = 0.0):
    ...     return q
    >>> attend(1, dropout_p=0.1)
    Traceback (most recent call last):
    ValueError: dropout_p = 0.1, allowed: 0.0
    """
    parameters = inspect.signature(function).parameters.values()
    fixed = [(i, p.name, p.default) for i, p in enumerate(parameters) if p.annotation is Fixed]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for place, name, default in fixed:
            given = args[place] if place < len(args) else kwargs.get(name, default)
            plain = isinstance(given, bool | int | float | str)
            if given is not default and not (plain and given == default):
                raise refusal(name, given, repr(default))
        return function(*args, **kwargs)

    return call


def refusal(name: str, value: object, allowed: str) -> ValueError:
    """Return the error for an argument; of a tensor it tells the shape."""
    told = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
    return ValueError(f"{name} = {told}, allowed: {allowed}")


def require_dims(**tensors: tuple[torch.Tensor, str]) -> None:
    """Raise ValueError unless each tensor has as many dimensions as its words name."""
    for name, (tensor, dims) in tensors.items():
        if tensor.dim() != dims.count(",") + 1:
            raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: {dims}")


def variant_options(
    window_left: int = -1,
    window_right: int = -1,
    soft_cap: float | None = None,
    alibi: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> dict[str, Any]:
    """Return the options of a verb for these parts of the variant, without those that are off.

    As in flash-attn and FlashInfer, a window of -1 has no end, and a cap of 0 or less is none.

    >>> variant_options(window_left=127, soft_cap=0.0)
    {'window_left': 127}
    """
    given = {
        "window_left": None if window_left < 0 else window_left,
        "window_right": None if window_right < 0 else window_right,
        "soft_cap": None if soft_cap is None or soft_cap <= 0 else soft_cap,
    }
    for name, tensor in (("alibi", alibi), ("sinks", sinks)):
        given[name] = None if tensor is None else tensor.float().contiguous()
    return {name: value for name, value in given.items() if value is not None}
