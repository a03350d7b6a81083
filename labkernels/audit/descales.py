"""Tensors in 8 bits as the values that they stand for: numbers of a format times scales."""

import numpy as np

from labkernels.audit.layouts import is_pool
from labkernels.audit.meaning import plain, text
from labkernels.numerics import rounding
from labkernels.numerics.arrays import namespace, to_numpy

_BITS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "uint8": ""}  # bytes: as is told


def is_fp8(tensor) -> bool:
    """Return whether a tensor holds floats of 8 bits, or bytes."""
    return str(getattr(tensor, "dtype", "")).removeprefix("torch.") in _BITS


def with_bytes_read(given: dict) -> list[dict]:
    """Return the tensors with the format of bytes, the likelier first where none is told.

    As vLLM's kv_cache_dtype says it, "fp8" and "auto" are e4m3.
    """
    if not any(str(getattr(given.get(n), "dtype", "")).endswith("uint8") for n in "qkv"):
        return [given]
    if "kv_dtype" not in given:
        return [given | {"bytes": fmt, "guessed": True} for fmt in ("e4m3", "e5m2")]
    told = text(given["kv_dtype"]).lower()
    if "e5m2" not in told and "e4m3" not in told and told not in ("fp8", "auto"):
        raise ValueError(f"kv_dtype = {told!r} of bytes, allowed: fp8, fp8_e4m3, fp8_e5m2")
    return [given | {"bytes": "e5m2" if "e5m2" in told else "e4m3"}]


def dequantised(name: str, tensor, scale, found: dict):
    """Return values times scales: one number, or one for each KV head, or of each request and head.

    Shapes: scale [], [1], [Hkv] or [B, Hkv]; tensor as `verdict` takes q, k and v.
    """
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind in _BITS:
        if hasattr(tensor, "detach"):
            tensor = tensor.view(namespace(tensor).uint8).cpu().numpy()
        tensor = rounding.from_bits(tensor, _BITS[kind] or found["bytes"])
    if scale is None:
        return tensor
    scales = to_numpy(scale) if hasattr(scale, "detach") else np.asarray(scale)
    if scales.dtype.kind not in "fiu" or not np.isfinite(scales).all() or not scales.all():
        raise ValueError(f"{name}_scale = {text(scale)[:40]}, allowed: finite numbers, not 0")
    scales = scales.astype(np.float64)
    if (scales == 1).all():
        return tensor
    values = np.asarray(plain(tensor), np.float64)
    if scales.size == 1:
        return values * scales.reshape(())
    heads = values.shape[1] if values.ndim == 4 and not is_pool(name, found) else values.shape[-2]
    rows = scales.reshape(-1, scales.shape[-1])
    if heads % rows.shape[-1] or scales.ndim > 2:
        raise ValueError(
            f"{name}_scale.shape = {scales.shape}, allowed: [B, Hkv], [Hkv], one number"
        )
    rows = np.repeat(rows, heads // rows.shape[-1], axis=-1)
    return values * _beside(name, values, rows, found)


def with_codes(cache, codes: tuple, found: dict):
    """Return a cache of values with its codes and each key's scales, in which mistakes have names.

    Shapes: codes, K and V as in the cache, [pages, page_size, Hkv, D].
    """
    told, kinds = {"values": lambda: (cache.k, cache.v)}, {fmt: kind for kind, fmt in _BITS.items()}
    for name, x in zip("kv", codes, strict=True):
        scale, ones = found.get(f"{name}_scale"), np.ones((*x.shape[:3], 1))
        told[f"{name}_scale"] = dequantised(name, ones, scale, found)[..., 0]
        is_bytes = str(x.dtype).endswith("uint8")
        told[name] = x.view(getattr(namespace(x), kinds[found["bytes"]])) if is_bytes else x
    return type(cache)(**vars(cache) | told)


def _beside(name: str, values: np.ndarray, rows: np.ndarray, found: dict) -> np.ndarray:
    """Return scales [B or 1, H] in a shape that multiplies values."""
    pool = is_pool(name, found)
    if values.ndim == 4 and not pool:
        of_token = rows[:, :, None, None]
    elif pool and len(rows) > 1:
        of_token = _of_pages(name, rows, found, values.shape[:2])[:, None, :, None]
    else:
        ends = found.get("cu_seqlens_q" if name == "q" else "cu_seqlens")
        each = len(rows) > 1 and ends is not None
        of_token = (np.repeat(rows, np.diff(to_numpy(ends)), axis=0) if each else rows)[:, :, None]
    if len(of_token) not in (1, len(values)):
        raise ValueError(f"{name}_scale has {len(rows)} requests, allowed: {len(values)}")
    return of_token


def _of_pages(name: str, rows: np.ndarray, found: dict, sizes: tuple[int, int]) -> np.ndarray:
    """Return the scales of the request to which each page belongs. Shapes: [pages, H]."""
    table, scales = to_numpy(found["page_table"]), np.ones((sizes[0], rows.shape[1]))
    taken = np.full(sizes[0], -1)
    for b, n in enumerate(-(-to_numpy(found["kv_len"]).astype(np.int64) // sizes[1])):
        pages = table[b, :n]
        if ((taken[pages] >= 0) & (rows[taken[pages]] != rows[b]).any(-1)).any():
            raise ValueError(f"{name}_scale differs between requests that share a page")
        taken[pages], scales[pages] = b, rows[b]
    return scales
