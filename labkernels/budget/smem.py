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


def aligned_bytes(n_bytes: int, alignment: int) -> int:
    """Return the size rounded up to a multiple of the alignment, in bytes.

    Raises: ValueError if n_bytes is not an integer >= 0 or alignment not a power of two.

    >>> aligned_bytes(1000, 128)
    1024
    """
    require_int("n_bytes", n_bytes)
    require_int("alignment", alignment, minimum=1)
    if alignment & (alignment - 1):
        raise ValueError(f"alignment = {alignment!r}, allowed: a power of two")
    return -(-n_bytes // alignment) * alignment
