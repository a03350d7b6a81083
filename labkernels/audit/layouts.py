"""Takes tensors out of the layouts that tools have: packed, flat, padded, in pages, in 8 bits."""

import numpy as np

from labkernels.audit.meaning import number, text
from labkernels.numerics import rounding
from labkernels.numerics.arrays import namespace, to_numpy
from labkernels.units import require_choice

LAYOUTS = ("bhsd", "bshd", "sbhd", "thd", "nhd", "hnd")
_OF_QUERIES = ("q", "out", "dout", "dq")
_OF_KEYS = ("k", "v", "dk", "dv")
_BITS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "uint8": "e4m3"}


def apart(given: dict) -> dict:
    """Return the tensors with q, k and v apart, heads apart, and without padding between requests.

    Raises: ValueError naming the tensor, its shape, and the option that says how it lies.
    """
    found = dict(given)
    heads = tuple(
        int(number(n, found.pop(n))) if n in found else 0 for n in ("q_heads", "kv_heads")
    )
    if min(heads) < 0 or (heads[0] and heads[1] and heads[0] % heads[1]):
        raise ValueError(
            f"heads = {heads[0]}/{heads[1]}, allowed: query heads / KV heads, a multiple"
        )
    layout = _layout(found)
    _unpack(found, heads)
    for names, n in ((_OF_QUERIES, heads[0]), (_OF_KEYS, heads[1] or heads[0])):
        for name in names:
            if name in found:
                found[name] = _with_heads(name, found[name], n, found)
    for of, names in (("q", (*_OF_QUERIES, "lse", "lse2")), ("kv", _OF_KEYS)):
        _without_padding(found, of, names)
    if layout == "sbhd":
        for name in (*_OF_QUERIES, *_OF_KEYS):
            if name in found and found[name].ndim == 4 and not _is_pool(name, found):
                found[name] = swapped(swapped(found[name], 0), 1)
    return found | ({"layout": layout} if layout in ("bhsd", "bshd") else {})


def _layout(found: dict) -> str:
    """Return the layout that is told, "" if none is; NHD and HND are those of the cache."""
    if "layout" not in found:
        return ""
    told = text(found.pop("layout")).lower()
    layout = told.partition("_")[0].replace("2", "").replace("3", "")
    require_choice("layout", layout, LAYOUTS)
    if layout in ("nhd", "hnd"):
        found.setdefault("kv_layout", layout)
    return layout


def _unpack(found: dict, heads: tuple[int, int]) -> None:
    """Take q, k and v out of one tensor, and k and v out of one."""
    if "qkv" in found:
        qkv, (q_heads, kv_heads) = found.pop("qkv"), heads
        if qkv.ndim >= 4 and qkv.shape[-3] == 3:
            found["q"], found["k"], found["v"] = (qkv[..., i, :, :] for i in range(3))
        elif q_heads:
            kv_heads = kv_heads or q_heads
            size = qkv.shape[-1] // (q_heads + 2 * kv_heads)
            flat = qkv.reshape(*qkv.shape[:-1], -1, max(1, size))
            ends = (0, q_heads, q_heads + kv_heads, q_heads + 2 * kv_heads)
            parts = zip("qkv", ends, ends[1:], strict=False)
            found |= {name: flat[..., a:b, :] for name, a, b in parts}
        else:
            allowed = "[..., 3, H, D], or with --heads Q/KV [..., (Q + 2 KV) D]"
            raise ValueError(f"qkv.shape = {tuple(qkv.shape)}, allowed: {allowed}")
    if "kv" not in found:
        return
    kv = found.pop("kv")
    paged = {"page_table", "kv_indices"} & found.keys()
    axis = 1 if paged else kv.ndim - 3
    if paged and kv.ndim == 5 and kv.shape[1] != 2:
        axis = 0  # vLLM's pool [2, pages, page_size, Hkv, D]
    if kv.ndim not in ((5,) if paged else (4, 5)) or kv.shape[axis] != 2:
        allowed = "[pages, 2, page_size, Hkv, D], [..., 2, Hkv, D]"
        raise ValueError(f"kv.shape = {tuple(kv.shape)}, allowed: {allowed}")
    where = (slice(None),) * axis
    found["k"], found["v"] = kv[(*where, 0)], kv[(*where, 1)]


def _with_heads(name: str, tensor, heads: int, found: dict):
    """Return [..., H D] as [..., H, D] where heads are told or must be."""
    flat = tensor.ndim == 2 and "q_nope" not in found
    one = flat and getattr(found.get("k"), "ndim", 0) == 3 and name in _OF_QUERIES  # one token
    told = heads and tensor.ndim in (2, 3) and tensor.shape[-2] != heads
    if flat and not one and not heads:
        raise ValueError(
            f"{name}.shape = {tuple(tensor.shape)}, allowed with --heads Q/KV: [T, H D]"
        )
    if not told and not (flat and heads and not one):
        return tensor
    if tensor.shape[-1] % heads:
        raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: [..., {heads} x D]")
    return tensor.reshape(*tensor.shape[:-1], heads, tensor.shape[-1] // heads)


def _without_padding(found: dict, of: str, names: tuple[str, ...]) -> None:
    """Take the tokens of each request out of padded ones, as cu_seqlens_*_padded places them."""
    padded = found.pop(f"cu_seqlens_{of}_padded", None)
    ends = found.get("cu_seqlens_q" if of == "q" else "cu_seqlens")
    if padded is None or ends is None:
        return
    starts, ends = (to_numpy(x).astype(np.int64) for x in (padded, ends))
    if starts.shape != ends.shape or (np.diff(starts) < np.diff(ends)).any():
        raise ValueError(f"cu_seqlens_{of}_padded = {starts}, allowed: room for {ends}")
    pairs = zip(starts.tolist(), np.diff(ends).tolist(), strict=False)
    index = np.concatenate([np.arange(first, first + n) for first, n in pairs])
    for name in names:
        if name in found:
            rows = found[name]
            if index.size and index.max() >= len(rows):
                raise ValueError(
                    f"{name} has {len(rows)} tokens, allowed: {index.max() + 1} or more"
                )
            found[name] = rows[namespace(rows).asarray(index)]


def _is_pool(name: str, found: dict) -> bool:
    return name in ("k", "v") and bool({"page_table", "kv_indices"} & found.keys())


def with_shared_pool(found: dict) -> dict:
    """Return the tensors with V as the first channels of K, where a pool holds both (FlashMLA)."""
    k, v, out = (found.get(name) for name in ("k", "v", "out"))
    if k is None or v is not None or "q_nope" in found or not _is_pool("k", found):
        return found
    if k.ndim != 4 or k.shape[2] != 1 or out is None or not out.shape[-1] <= k.shape[3]:
        raise ValueError("tensor v is missing, allowed without it: one KV head that holds K and V")
    return found | {"v": k[..., : out.shape[-1]]}


def swapped(tensor, first: int = 1):
    """Return the tensor with the dimensions `first` and `first` + 1 exchanged."""
    swap = tensor.transpose if hasattr(tensor, "detach") else tensor.swapaxes
    return swap(first, first + 1)


def is_fp8(tensor) -> bool:
    """Return whether a tensor holds floats of 8 bits, or bytes."""
    return str(getattr(tensor, "dtype", "")).removeprefix("torch.") in _BITS


def dequantised(name: str, tensor, scale, found: dict):
    """Return values times scales: one number, or one for each KV head, or of each request and head.

    Shapes: scale [], [1], [Hkv] or [B, Hkv]; tensor as `verdict` takes q, k and v.
    """
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind in _BITS:
        if hasattr(tensor, "detach"):
            tensor = tensor.view(namespace(tensor).uint8).cpu().numpy()
        tensor = rounding.from_bits(tensor, _BITS[kind])
    if scale is None:
        return tensor
    scales = to_numpy(scale) if hasattr(scale, "detach") else np.asarray(scale)
    if scales.dtype.kind not in "fiu" or not np.isfinite(scales).all():
        raise ValueError(f"{name}_scale = {text(scale)[:40]}, allowed: finite numbers")
    scales = scales.astype(np.float64)
    if (scales == 1).all():
        return tensor
    if kind == "uint16":
        tensor = rounding.from_bits(tensor, "bf16")
    values = np.asarray(to_numpy(tensor), np.float64)
    if scales.size == 1:
        return values * scales.reshape(())
    heads = values.shape[1] if values.ndim == 4 and not _is_pool(name, found) else values.shape[-2]
    rows = scales.reshape(-1, scales.shape[-1])
    if heads % rows.shape[-1] or scales.ndim > 2:
        raise ValueError(
            f"{name}_scale.shape = {scales.shape}, allowed: [B, Hkv], [Hkv], one number"
        )
    rows = np.repeat(rows, heads // rows.shape[-1], axis=-1)
    return values * _beside(name, values, rows, found)


def _beside(name: str, values: np.ndarray, rows: np.ndarray, found: dict) -> np.ndarray:
    """Return scales [B or 1, H] in a shape that multiplies values."""
    if len(rows) == 1:
        whole = values.ndim == 4 and not _is_pool(name, found)
        return rows[0][:, None, None] if whole else rows[0][:, None]
    if _is_pool(name, found):
        table, page = to_numpy(found["page_table"]), values.shape[1]
        of_page = np.ones((len(values), rows.shape[1]))
        taken = np.full(len(values), -1)
        for b, n in enumerate(-(-to_numpy(found["kv_len"]).astype(np.int64) // page)):
            pages = table[b, :n]
            if ((taken[pages] >= 0) & (rows[taken[pages]] != rows[b]).any(-1)).any():
                raise ValueError(f"{name}_scale differs between requests that share a page")
            taken[pages], of_page[pages] = b, rows[b]
        return of_page[:, None, :, None]
    ends = found.get("cu_seqlens_q" if name == "q" else "cu_seqlens")
    if values.ndim == 4:
        of_token = rows[:, :, None, None]
    elif ends is None:
        of_token = rows[:, :, None]
    else:
        of_token = np.repeat(rows, np.diff(to_numpy(ends)), axis=0)[:, :, None]
    if len(of_token) not in (1, len(values)):
        raise ValueError(f"{name}_scale has {len(rows)} requests, allowed: {len(values)}")
    return of_token
