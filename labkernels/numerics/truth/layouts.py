"""Keys and values of any layout as a paged pool: pools, page table and lengths."""

import math
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array, namespace, to_numpy

_LARGEST_PAGE = 256


def of_packed(k: Array, v: Array, cu_seqlens_k: Array | list[int]) -> tuple[Any, ...]:
    """Return pools, page table and lengths for k, v [total_k, Hkv, D] and the ends of requests.

    A page is as long as the ends allow, at most 256 keys. The pools share memory with k and v.
    """
    _check_pair(k, v, 3, "[total_k, Hkv, D] with cu_seqlens_k")
    ends = integers("cu_seqlens_k", cu_seqlens_k)
    check_ends("cu_seqlens_k", ends, len(k), exact=False)
    size = math.gcd(_LARGEST_PAGE, len(k), *ends.tolist())
    lengths = np.diff(ends)
    slots = np.arange(max(1, -(-int(lengths.max(initial=0)) // size)))
    table = np.minimum(ends[:-1, None] // size + slots, max(0, len(k) // size - 1))
    return *(x.reshape(len(x) // size, size, *x.shape[1:]) for x in (k, v)), table, lengths


def of_dense(k: Array, v: Array, kv_lens: Array | list[int] | None = None) -> tuple[Any, ...]:
    """Return pools, page table and lengths for k, v [B, Hkv, L, D], cut to kv_lens [B] if given."""
    _check_pair(k, v, 4, "[B, Hkv, L, D]")
    batch, _, length, _ = k.shape
    size = math.gcd(_LARGEST_PAGE, length)
    paged = (tokens(x).reshape(-1, size, x.shape[1], x.shape[3]) for x in (k, v))
    table = np.arange(batch * (length // size)).reshape(batch, -1)
    return *paged, table, np.full(batch, length) if kv_lens is None else kv_lens


def tokens(x: Array) -> Array:
    """Return [B, H, M, ...] as one row per token, [B M, H, ...]."""
    swapped = namespace(x).swapaxes(x, 1, 2)
    return swapped.reshape(-1, x.shape[1], *x.shape[3:])


def integers(name: str, values: Any) -> np.ndarray:
    """Return the values as int64. Raises: ValueError, naming them, unless they are integers."""
    found = to_numpy(values) if hasattr(values, "detach") else np.asarray(values)
    if found.size and found.dtype.kind not in "iu":
        raise ValueError(f"{name}.dtype = {found.dtype}, allowed: integers")
    return found.astype(np.int64)


def check_ends(name: str, ends: np.ndarray, total: int, *, exact: bool) -> None:
    """Raise ValueError unless the ends rise from 0 to the total or, if not exact, to at most it."""
    rising = ends.ndim == 1 and ends.size and ends[0] == 0 and (np.diff(ends) >= 0).all()
    if not (rising and (ends[-1] == total if exact else ends[-1] <= total)):
        raise ValueError(f"{name} = {ends.tolist()}, allowed: rising from 0 to {total}")


def _check_pair(k: Array, v: Array, ndim: int, allowed: str) -> None:
    if k.ndim != ndim:
        raise ValueError(f"k.shape = {tuple(k.shape)}, allowed: {allowed}")
    if tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        raise ValueError(f"v.shape = {tuple(v.shape)}, allowed: {tuple(k.shape[:-1])} and any Dv")
