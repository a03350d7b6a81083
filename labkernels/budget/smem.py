"""Shared memory in bytes, from the shapes of the arrays that live in it."""

import math

from labkernels.formats import named
from labkernels.units import require_int


def array_bytes(*shape: int, dtype: str) -> int:
    """Return the bytes of an array of that shape, such as [stages, keys, head_dim].

    Raises: ValueError if a dimension is not an integer >= 1, or dtype is not a known format.

    >>> array_bytes(2, 64, 128, dtype="bf16")  # two stages of 64 keys
    32768
    """
    sizes = [require_int(f"shape[{i}]", size, minimum=1) for i, size in enumerate(shape)]
    return math.prod(sizes) * named(dtype).bytes
