"""Turns tensors that a tool saved into arguments of `verdict`, whatever their names and layouts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from labkernels.audit import gradients, importers
from labkernels.audit.names import DEFAULT_GIB, GIB, NAMES, Take
from labkernels.audit.verdict import LAYOUTS, TAKEN_AS_BSHD, swapped, verdict, wrongness
from labkernels.numerics import rounding
from labkernels.numerics.arrays import namespace, to_numpy
from labkernels.numerics.verdict.verdict import BUG, Verdict
from labkernels.units import LOG2_E

_NUMBERS = ("scale", "causal", "window_left", "soft_cap", "k_scale", "v_scale")
_BITS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "uint8": "e4m3"}
# Each of these tensors says where a request begins or ends.
_DIVISIONS = {"cu_seqlens", "cu_seqlens_q", "kv_indptr", "page_table", "kv_len"}


@dataclass(frozen=True, eq=False)
class Reading:
    """One way to read a dump, as arguments of `verdict`.

    words: what was assumed about the dump, for the note of the verdict.
    """

    out: object
    q: object
    arguments: dict
    words: tuple[str, ...]

    def verdict(self, **how) -> Verdict:
        """Return the verdict on the dump, read this way."""
        found = verdict(self.out, self.q, **(self.arguments | how))
        return replace(found, note="; ".join(self.words))


def audit(
    path: Path,
    *,
    scale: float | None = None,
    p_format: str | None = None,
    names: dict[str, str] | None = None,
    max_gib: float = DEFAULT_GIB,
) -> Verdict:
    """Judge the tensors of a file or a folder in one of the formats of `importers`.

    names: the file's own names for some of names.NAMES. If a layout or the base of lse is
    ambiguous, the first reading in which the output is right is used, or else the least wrong
    reading (see `judge`); the note of the verdict says which reading was used.
    Raises: ValueError naming the file and the tensor that is missing or malformed;
    FileNotFoundError.
    """
    tensors = read(path, names=names, max_gib=max_gib)
    if scale is not None:
        tensors["scale"] = scale
    try:
        found = judge(tensors, p_format=p_format)
        return gradients.with_gradients(found, tensors)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read(path: Path, *, names: dict[str, str] | None = None, max_gib: float = DEFAULT_GIB) -> dict:
    """Read the tensors and numbers of a file or folder, under the names of names.NAMES.

    Raises: ValueError in one line for a file that cannot be read or lacks q or out;
    FileNotFoundError.
    """
    path, take = Path(path), Take(dict(names or {}), max_gib * GIB)
    tensors = importers.read(path, take)
    missing = [name for name in ("q", "out") if name not in tensors]
    if "q_nope" in tensors:
        missing = [name for name in missing if name != "q"]
    if missing:
        unread = ", ".join(sorted(set(take.unread))[:12])
        there = ", ".join(tensors) or "none of a known name"
        if unread:
            there += f"; not known: {unread}; --map {missing[0]}=NAME names the tensor"
        raise ValueError(f"{path}: tensor {missing[0]} is missing; there are {there}")
    return tensors


def judge(
    tensors: dict, *, p_format: str | None = None, query: np.ndarray | None = None
) -> Verdict:
    """Judge tensors under our names by the first reading in which the output is right.

    If every reading is wrong, the reading counts in which the fewest elements exceed their bounds;
    among equals, the reading in which the fewest tests fail. Its mistake alone is named.
    query: q as another dump was read. Of wrong readings, those with this q are preferred.

    Where both lse and lse2 are there, lse2 is judged in base 2, and then lse in either base.

    Raises: the ValueError of `verdict` for the first reading, if `verdict` refuses every reading.
    """
    if tensors.get("lse") is not None and tensors.get("lse2") is not None:
        of_lse2 = judge(tensors | {"lse": None}, p_format=p_format, query=query)
        if of_lse2.answer == BUG:
            return of_lse2
        return judge(tensors | {"lse2": None}, p_format=p_format, query=query)
    ways, wrong, refused = list(readings(tensors)), [], None
    for reading in ways:
        try:
            found = reading.verdict(p_format=p_format, named=len(ways) == 1)
        except ValueError as error:
            refused = refused or error
            continue
        if found.answer != BUG:
            return found
        wrong.append((reading, found))
    if not wrong:
        raise refused or ValueError("tensor k is missing, allowed: k and v, kv, or ckv and kpe")
    alike = [
        (reading, found)
        for reading, found in wrong
        if query is not None and np.array_equal(to_numpy(found.problem.q), query)
    ]
    reading, found = min(alike or wrong, key=lambda pair: wrongness(pair[1]))
    return found if len(ways) == 1 else reading.verdict(p_format=p_format)


def readings(tensors: dict) -> Iterator[Reading]:
    """Yield every way to read tensors under our names, the likeliest first.

    Raises: ValueError naming a tensor, its shape and what is allowed.
    """
    for name in tensors:
        if name not in NAMES:
            raise ValueError(f"tensor {name} is unknown, allowed: {', '.join(NAMES)}")
    given = _plain(tensors)
    for layout in _layouts(given):
        for base in ("2", "e") if "lse" in given and "lse2" not in given else ("2",):
            yield _reading(given, layout, base)


def _plain(tensors: dict) -> dict:
    """Return the tensors with numbers as floats, and with K and V apart and in values.

    The pages of K and V then lie as [pages, page_size, Hkv, D].
    """
    found = {name: value for name, value in tensors.items() if value is not None}
    for name in _NUMBERS:
        if name in found:
            found[name] = _number(name, found[name])
    if "kv" in found:
        kv = found.pop("kv")
        if kv.ndim != 5 or kv.shape[1] != 2:
            shape = tuple(kv.shape)
            raise ValueError(f"kv.shape = {shape}, allowed: [pages, 2, page_size, Hkv, D]")
        found["k"], found["v"] = kv[:, 0], kv[:, 1]
    for name in ("k", "v"):
        if name in found:
            found[name] = _dequantised(name, found[name], found.pop(f"{name}_scale", None))
        found.pop(f"{name}_scale", None)
    if str(found.pop("kv_layout", "NHD")).upper() == "HND":
        for name in {"k", "v"} & found.keys():  # MLA's latent cache has no heads to move
            found[name] = swapped(found[name], found[name].ndim - 3)
    if "kv_indptr" in found and "kv_indices" in found:
        found |= _pages(found)
    if not _DIVISIONS & found.keys() and getattr(found.get("k"), "ndim", 0) == 3:
        found |= _one_request(found)
    return found


def _one_request(found: dict) -> dict:
    """Return what makes a batch of a call of one request.

    Shapes: k, v [L, Hkv, D]; q, out [M, Hq, D], or [Hq, D] for one token.
    """
    q, length = found.get("q"), found["k"].shape[0]
    ends = {"cu_seqlens": np.array([0, length])}
    if getattr(q, "ndim", 0) == 3:
        return ends | {"cu_seqlens_q": np.array([0, q.shape[0]])}
    return ends | {n: found[n][None] for n in ("q", "out", "lse", "lse2") if n in found}


def _dequantised(name: str, tensor, scale: float | None):
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind in _BITS:
        if hasattr(tensor, "detach"):
            tensor = tensor.view(namespace(tensor).uint8).cpu().numpy()
        tensor = rounding.from_bits(tensor, _BITS[kind])
    if scale is None or scale == 1:
        return tensor
    if kind == "uint16":
        tensor = rounding.from_bits(tensor, "bf16")
    return np.asarray(to_numpy(tensor), np.float64) * scale


def _number(name: str, value) -> float:
    if hasattr(value, "reshape"):
        if int(np.prod(value.shape, dtype=object)) != 1:
            raise ValueError(f"{name}.shape = {tuple(value.shape)}, allowed: one number")
        return float(value.reshape(-1)[0])
    return float(value)


def _pages(found: dict) -> dict:
    """Return the page table and the lengths that FlashInfer's three arrays describe."""
    ends, indices = (to_numpy(found[name]).astype(np.int64) for name in ("kv_indptr", "kv_indices"))
    counts = np.diff(ends)
    if ends.ndim != 1 or (counts < 0).any() or ends[0] != 0 or ends[-1] > len(indices):
        raise ValueError(f"kv_indptr = {ends}, allowed: rising from 0 to {len(indices)}")
    pool = found["k"] if "k" in found else found.get("ckv")
    if pool is None:
        raise ValueError("tensor k is missing, allowed: a pool beside kv_indptr")
    size = pool.shape[1]
    last = to_numpy(found["kv_last_page_len"]) if "kv_last_page_len" in found else size
    table = np.zeros((len(counts), max(1, int(counts.max(initial=0)))), np.int64)
    for b, n in enumerate(counts.tolist()):
        table[b, :n] = indices[ends[b] : ends[b] + n]
    lengths = np.where(counts > 0, (counts - 1) * size + last, 0)
    return {"page_table": table, "kv_len": lengths}


def _layouts(given: dict) -> tuple[str, ...]:
    """Return the layouts that q, out and, without pages, k and v may have, the likeliest first."""
    q, k = given.get("q"), given.get("k")
    dense = "page_table" not in given and k is not None and k.ndim == 4
    if q is None or not (q.ndim == 4 or (q.ndim == 3 and dense)):
        return LAYOUTS[:1]
    if not dense:
        heads = k.shape[-2] if k is not None and k.ndim > 2 else 1  # of a pool or of packed keys
        fits = {"bhsd": q.shape[1] % max(1, heads) == 0, "bshd": q.shape[2] % max(1, heads) == 0}
    else:
        fits = {
            name: k.shape[axis] and q.shape[min(axis, q.ndim - 2)] % k.shape[axis] == 0
            for name, axis in (("bhsd", 1), ("bshd", 2))
        }
    return tuple(name for name in LAYOUTS if fits[name]) or LAYOUTS[:1]


def _reading(given: dict, layout: str, base: str) -> Reading:
    found, words = dict(given), []
    paged = "page_table" in found
    if layout == "bshd":
        words.append(TAKEN_AS_BSHD)
        for name in ("q", "out", *(() if paged else ("k", "v"))):
            if name in found and found[name].ndim == 4:
                found[name] = swapped(found[name])
    how = {
        name: found[name]
        for name in ("cu_seqlens_q", "scale", "window_left", "soft_cap", "alibi", "sinks", "mask")
        if name in found
    }
    how |= {"causal": bool(found.get("causal", 0)), "layout": "bhsd"}
    q = found.get("q")
    if "q_nope" in found:
        q, how["cache"] = _latent(found)
        if "scale" not in found:
            raise ValueError("scale is missing, allowed with q_nope: a number, also from --scale")
    elif paged:
        if "kv_len" not in found:
            raise ValueError("kv_len is missing, allowed with page_table: the lengths [B]")
        names = ("k", "v", "page_table", "kv_len")
        how["cache"] = SimpleNamespace(**{name: found[name] for name in names})
    else:
        ends = found.get("cu_seqlens", found.get("kv_indptr"))
        how |= {"k": found.get("k"), "v": found.get("v"), "cu_seqlens": ends}
        how["kv_len"] = None if ends is not None else found.get("kv_len")
    if "lse2" in found or "lse" in found:
        lse = found["lse2"] if "lse2" in found else found["lse"]
        how["lse2"] = _lse(lse, q, base)
        words += ["lse taken as a natural logarithm"] * (base == "e")
    return Reading(found["out"], q, how, tuple(words))


def _latent(found: dict):
    """Return the query and the cache of an MLA call in absorbed form."""
    missing = [n for n in ("q_pe", "ckv", "kpe", "page_table", "kv_len") if n not in found]
    if missing:
        raise ValueError(f"{missing[0]} is missing, allowed with q_nope: q_pe, ckv, kpe and pages")
    parts = (to_numpy(_wide(found[n])) for n in ("ckv", "kpe"))
    ckv, kpe = (x.reshape(*x.shape[:2], 1, -1) for x in parts)
    pages = {name: found[name] for name in ("page_table", "kv_len")}
    k = np.concatenate([ckv, kpe], -1)
    return (found["q_nope"], found["q_pe"]), SimpleNamespace(k=k, v=ckv, **pages)


def _wide(tensor):
    bits = isinstance(tensor, np.ndarray) and tensor.dtype == np.uint16
    return rounding.from_bits(tensor, "bf16") if bits else tensor


def _lse(lse, q, base: str):
    """Return the log-sum-exp in base 2, in the shape of q without D."""
    query = q[0] if isinstance(q, tuple) else q
    values, shape = to_numpy(lse).astype(np.float64), tuple(query.shape[:-1])
    if values.shape != shape:
        if values.shape[::-1] == shape and values.ndim == 2:  # flash-attn has [H, total_q]
            values = values.T
        elif values.ndim == 3 and np.swapaxes(values, 1, 2).shape == shape:
            values = np.swapaxes(values, 1, 2)
    return (values * (LOG2_E if base == "e" else 1.0)).astype(np.float32)
