"""What the names of a dump mean: one window, one mask and one bias, or a refusal.

Conventions and their sources:
- window_left, window_right: keys before and after a query's own place; -1 or None: no end
  (flash_attn_interface.py, and window_size of TransformerEngine's DotProductAttention; FlashInfer
  has window_left alone; sliding_window_size of SGLang's RadixAttention is window_left).
- sliding_window: a query sees so many keys, its own among them (masking_utils.py of transformers,
  flash_attn.py of vLLM: the left end is sliding_window - 1). Without causal the two differ. Two
  numbers are ends as in window_size, as an attention layer of vLLM keeps them.
- is_causal: torch aligns it to the first key, and others to the last. The two differ where a dense
  call has several queries and another number of keys.
- attn_mask_type and attention_mask of TransformerEngine: "causal" is aligned to the first key, a
  type that ends in bottom_right to the last; True hides a key (dot_product_attention.py).
- masks and biases: torch.nn.functional.scaled_dot_product_attention. True and 1 show a key, floats
  are added; of two dimensions, [B, L] is the padding mask of transformers.
- custom_mask of FlashInfer: one row of pairs per request, flattened and joined.
- alibi_slopes: -slope |i + L - n - j| (flash-attn), slope (j - i) with causal or by FlashInfer.
"""

import math
from dataclasses import replace

import numpy as np

from labkernels.audit.names import REFUSED
from labkernels.numerics import rounding
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.truth.layouts import integers
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.variant import VariantTensors

_MOST_ELEMENTS = 2**36
HIDES_BELOW = -9999.0  # Megatron adds -10,000, others the least number of a format
_TOP_LEFT = ("causal", "padding_causal")
_MASK_TYPES = {
    "no_mask": False,
    "padding": False,
    "arbitrary": False,
    **dict.fromkeys((*_TOP_LEFT, "causal_bottom_right", "padding_causal_bottom_right"), True),
}


def plain(tensor) -> np.ndarray:
    """Return the values in NumPy; NumPy's uint16 holds the bits of bf16."""
    bits = isinstance(tensor, np.ndarray) and tensor.dtype == np.uint16
    return rounding.from_bits(tensor, "bf16") if bits else to_numpy(tensor)


def tensor(name: str, value):
    """Return a tensor that holds numbers; a list becomes an array.

    Raises: ValueError for text, objects, numbers with an imaginary part, and for a tensor whose
    values are hidden, lie elsewhere, or are far more than any memory holds.
    """
    if not hasattr(value, "shape") and not isinstance(value, list | tuple):
        raise ValueError(f"{name} is a {type(value).__name__}, allowed: a tensor")
    if hasattr(value, "element_size"):
        kind = str(value.dtype).removeprefix("torch.")
        plain = str(value.layout) == "torch.strided" and value.device.type != "meta"
        known = plain and not value.is_complex() and not value.is_quantized
    else:
        try:
            value = value if isinstance(value, np.ndarray) else np.asarray(value)
        except (TypeError, ValueError):  # a ragged list
            raise ValueError(f"{name} = {text(value)[:40]}, allowed: a tensor") from None
        kind, bits = str(value.dtype), value.dtype.kind == "V" and value.dtype.names is None
        known = not isinstance(value, np.ma.MaskedArray) and (value.dtype.kind in "biuf" or bits)
    if not known or math.prod(value.shape) > _MOST_ELEMENTS:
        shape = tuple(value.shape)
        raise ValueError(f"{name}.dtype = {kind}, {shape}, allowed: a tensor of real numbers")
    return value


def ends_of(name: str, value) -> np.ndarray:
    """Return where requests end. Raises: ValueError for anything but a row of integers."""
    found = integers(name, value)
    if found.ndim != 1 or not found.size:
        raise ValueError(f"{name}.shape = {found.shape}, allowed: [B + 1]")
    return found


def number(name: str, value) -> float:
    """Return one number, also of a tensor with one element; True and False are none."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        raise ValueError(f"{name} = {text(value)[:40]}, allowed: one number")
    return _any_number(name, value)


def whole(name: str, value) -> int:
    """Return one whole number."""
    found = number(name, value)
    if not abs(found) < 2**31 or found != int(found):
        raise ValueError(f"{name} = {found}, allowed: a whole number")
    return int(found)


def _any_number(name: str, value) -> float:
    if hasattr(value, "reshape"):
        if int(np.prod(value.shape, dtype=object)) != 1:
            raise ValueError(f"{name}.shape = {tuple(value.shape)}, allowed: one number")
        value = (to_numpy(value) if hasattr(value, "detach") else np.asarray(value)).reshape(-1)[0]
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} = {str(value)[:40]!r}, allowed: one number") from None


def of_all_requests(name: str, value):
    """Return one row [H] of [B, H] whose rows are equal."""
    rows = to_numpy(value)
    if rows.ndim == 2 and not (rows == rows[:1]).all():
        raise ValueError(f"{name} differs between requests, allowed: one row, or a bias")
    return rows[0] if rows.ndim == 2 and len(rows) else rows


def text(value) -> str:
    """Return a string, also of NumPy's array of one."""
    one = value.reshape(-1)[0] if getattr(value, "size", 0) == 1 else value
    return " ".join(str(one).split())


def flag(name: str, value) -> bool:
    """Return True or False. Raises: ValueError for anything but a bool, 0 and 1."""
    known = value if isinstance(value, bool) else _number_or_nan(value)
    if known not in (0, 1):
        raise ValueError(f"{name} = {str(value)[:40]!r}, allowed: True, False, 1, 0")
    return bool(known)


def _number_or_nan(value) -> float:
    try:
        return np.nan if isinstance(value, str) else _any_number("", value)
    except ValueError:
        return np.nan


def refuse_unknown_mathematics(found: dict) -> None:
    """Remove names of REFUSED whose values change nothing. Raises: ValueError for other values."""
    for name, (_, neutral, why) in REFUSED.items():
        if name not in found:
            continue
        value = found.pop(name)
        plain = text(value).upper() if isinstance(value, str) else _number_or_nan(value)
        if plain not in neutral:
            allowed = " or ".join(map(str, neutral)) or "a dump without it"
            raise ValueError(f"{name} cannot be judged: {why}; allowed: {allowed}")


def with_one_window(found: dict) -> dict:
    """Return the tensors with causal, window_left and window_right in place of all their names."""
    found = dict(found)
    if "mask_type" in found:
        found |= _of_mask_type(text(found.pop("mask_type")), found)
    if "is_causal" in found:
        found.setdefault("causal", _of_is_causal(found.pop("is_causal"), found))
    if "causal" in found:
        found["causal"] = flag("causal", found["causal"])
    ends: dict[str, list[int | None]] = {"window_left": [], "window_right": []}
    for name, values in ends.items():
        if name in found:
            values.append(window_end(name, found.pop(name)))
    if _is_pair(found.get("sliding_window")):
        found["window_size"] = found.pop("sliding_window")
    if "window_size" in found:
        pair = found.pop("window_size")
        if not _is_pair(pair):
            raise ValueError(
                f"window_size = {text(pair)[:40]}, allowed: (left, right); a number means "
                "different windows in different tools: save window_left or sliding_window"
            )
        for values, value in zip(ends.values(), pair, strict=True):
            values.append(None if value is None else window_end("window_size", value))
    if "sliding_window" in found:
        size = window_end("sliding_window", found.pop("sliding_window"))
        if size and not found.get("causal"):
            raise ValueError(
                f"sliding_window = {size} without causal, allowed: with causal; tools differ here, "
                "so that window_left and window_right are needed"
            )
        ends["window_left"].append(size - 1 if size else None)
    for name, values in ends.items():
        if len(set(values)) > 1:
            said = " and ".join(map(str, values))
            raise ValueError(f"{name} is {said} by different names, allowed: one window")
        if values and values[0] is not None:
            found[name] = values[0]
    return found


def window_end(name: str, value) -> int | None:
    """Return how many keys lie before or after; None where there is no end."""
    size = whole(name, value)
    return size if size >= 0 else None


def _is_pair(value) -> bool:
    return getattr(value, "ndim", isinstance(value, list | tuple)) == 1 and len(value) == 2


def _of_mask_type(kind: str, found: dict) -> dict:
    if kind not in _MASK_TYPES:
        raise ValueError(f"attn_mask_type = {kind!r}, allowed: {', '.join(_MASK_TYPES)}")
    if kind in _TOP_LEFT and not _same_lengths(found):
        raise ValueError(
            f"attn_mask_type = {kind!r} with other lengths of q than of k, allowed: "
            f"{kind}_bottom_right, or a mask"
        )
    mask = found.get("mask")
    of_tool = {} if mask is None else {"mask": to_numpy(mask) == 0}
    return {"causal": _MASK_TYPES[kind]} | of_tool


def _of_is_causal(value, found: dict) -> bool:
    causal, shape = flag("is_causal", value), getattr(found.get("q"), "shape", ())
    dense = len(shape) == 4 and not {"kv_len", "page_table", "kv_indptr"} & found.keys()
    if causal and dense and 1 not in shape[1:3] and not _same_lengths(found):
        raise ValueError(
            "is_causal with other lengths of q than of k, allowed: causal, which is aligned to the "
            "last key, or a mask; torch aligns is_causal to the first key"
        )
    return causal


def _same_lengths(found: dict) -> bool:
    """Return whether requests have as many queries as keys, in whatever layout."""
    ends = [found.get(name) for name in ("cu_seqlens_q", "cu_seqlens")]
    if all(x is not None for x in ends):
        return np.array_equal(*map(to_numpy, ends))
    shapes = [getattr(found.get(name), "shape", None) for name in "qk"]
    if None in shapes:  # in one tensor, qkv
        return "qkv" in found
    lengths = [{(shape[0], shape[1]), (shape[0], shape[-2])} for shape in shapes]
    return bool(lengths[0] & lengths[1])


def with_masks(problem: Problem, masks: dict, queries: int | None) -> Problem:
    """Return the problem with what masks and biases of any shape that broadcasts do to it.

    Shapes: what torch broadcasts to [B, Hq, M, L], where queries is M; [B, L], of padding;
    [total_q, longest]; FlashInfer's [pairs].
    Raises: ValueError naming the mask, its shape or number, and what is allowed.
    """
    hides, added = np.zeros((1, 1, 1), bool), np.zeros((1, 1, 1))
    for name, mask in masks.items():
        found = _of_mask(name, mask)
        of_rows = _of_rows(name, found, problem, queries)
        if found.dtype == bool:
            hides = hides | ~of_rows
        else:
            hides, added = hides | (of_rows <= HIDES_BELOW), added + of_rows
            _require_one_meaning(name, of_rows, problem)
    added = np.where(hides, 0.0, added)
    given = problem.variant or VariantTensors()
    if not added.any() and len(hides) == 1:
        return replace(problem, variant=replace(given, mask=~hides[0]))
    bias = np.where(hides, -np.inf, added)
    return replace(problem, variant=replace(given, bias=bias))


def _of_mask(name: str, mask) -> np.ndarray:
    """Return a mask as bools, or a bias as float64."""
    found = plain(mask)
    if found.dtype.kind in "iu" and name == "mask":
        if not np.isin(found, (0, 1)).all():
            raise ValueError(f"{name} of integers other than 0 and 1, allowed: bool, 0 and 1")
        found = found == 1
    if found.dtype == bool and name == "mask":
        return found
    if found.dtype.kind != "f":
        raise ValueError(
            f"{name}.dtype = {found.dtype}, allowed: bool or floats, for a bias floats"
        )
    found = found.astype(np.float64)
    if name == "mask" and found.any() and np.isin(found, (0, 1)).all():
        raise ValueError("mask of floats 0 and 1, allowed: bool, 0 and 1, or a bias that is added")
    if np.isnan(found).any() or (found == np.inf).any():
        raise ValueError(f"{name} holds NaN or inf, allowed: finite numbers and -inf")
    return found


def _require_one_meaning(name: str, of_rows: np.ndarray, problem: Problem) -> None:
    """Raise where a finite number hides all keys of a row: that is the mean of V, or 0."""
    keys = np.arange(of_rows.shape[-1]) < problem.n_keys[:, None]
    seen = np.where(keys, of_rows, -np.inf)
    dark = (seen <= HIDES_BELOW).all(-1) & np.isfinite(seen).any(-1)
    if dark.any():
        raise ValueError(
            f"{name} hides all keys of {int(dark.any(0).sum())} rows by a finite number, "
            "allowed: -inf, or rows that see a key"
        )


def _of_rows(name: str, values: np.ndarray, problem: Problem, queries: int | None) -> np.ndarray:
    """Return a mask as [1 or Hq, total_q, longest], of masks for longer requests the first keys."""
    batch, (total, heads), longest = problem.batch, problem.q.shape[:2], int(problem.kv_lens.max())
    lens, shape = np.diff(problem.q_ends), values.shape
    if values.ndim == 1 and values.size == int((lens * problem.kv_lens).sum()):
        return _unflattened(values, lens, problem.kv_lens, longest)[None]
    allowed = f"[1 or Hq, total_q, longest], ({total}, {longest})"
    if values.ndim >= 2 and shape[-2] == total and (queries is None or values.ndim == 2):
        values = values.reshape((1,) * (3 - values.ndim) + shape)
    elif queries is not None:
        allowed = f"what broadcasts to {(batch, heads, queries, longest)}, [B, Hq, M, L]"
        if values.ndim in (2, 3) and shape[0] == batch > 1:
            other = {2: queries, 3: heads}[values.ndim]  # what torch takes the first dimension for
            if other == batch:
                words = f"{name}.shape = {shape} has two meanings where B = {batch}"
                raise ValueError(f"{words}, allowed: four dimensions, [B, Hq, M, L] or 1 for each")
            values = values[:, None, None] if values.ndim == 2 else values[:, None]
        values = values.reshape((1,) * (4 - values.ndim) + values.shape)
        grid = zip(values.shape, (batch, heads, queries), strict=False)
        if values.ndim == 4 and all(a in (1, b) for a, b in grid):
            of_head = np.broadcast_to(values, (batch, values.shape[1], queries, values.shape[-1]))
            values = of_head.swapaxes(0, 1).reshape(values.shape[1], total, -1)
    room = problem.page_table.shape[1] * problem.k_pool.shape[1]
    keys_fit = values.ndim == 3 and (values.shape[-1] == 1 or longest <= values.shape[-1] <= room)
    if not keys_fit or values.shape[0] not in (1, heads) or values.shape[1] != total:
        raise ValueError(f"{name}.shape = {shape}, allowed: {allowed}")
    return np.broadcast_to(values, (*values.shape[:2], max(values.shape[-1], longest)))[
        ..., :longest
    ]


def _unflattened(values, q_lens, kv_lens, longest: int) -> np.ndarray:
    """Return FlashInfer's mask as [total_q, longest]."""
    found, first, row = np.zeros((int(q_lens.sum()), longest), values.dtype), 0, 0
    for n, keys in zip(q_lens.tolist(), kv_lens.tolist(), strict=True):
        found[row : row + n, :keys] = values[first : first + n * keys].reshape(n, keys)
        first, row = first + n * keys, row + n
    return found
