"""Turns tensors that a tool saved into arguments of `verdict`, whatever their names and layouts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from labkernels.audit import gradients, importers, layouts, meaning
from labkernels.audit.layouts import swapped
from labkernels.audit.names import DEFAULT_GIB, GIB, NAMES, REFUSED, Take
from labkernels.audit.verdict import LAYOUTS, TAKEN_AS_BSHD, verdict, wrongness
from labkernels.numerics import rounding
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.verdict.verdict import BUG, Verdict
from labkernels.units import LOG2_E

TAKEN_AS_SBHD = "tensors taken as [S, B, H, D]"
_NUMBERS = ("scale", "soft_cap")
_NO_TENSORS = {*_NUMBERS, *REFUSED, "causal", "mask_type", "kv_layout", "layout"} | {
    name for name in NAMES if "window" in name or name.endswith(("_scale", "_heads"))
}
_VARIANT = ("window_left", "window_right", "soft_cap", "alibi", "sinks", "mask", "bias")
# Each of these tensors says where a request begins or ends.
_DIVISIONS = {"cu_seqlens", "cu_seqlens_q", "kv_indptr", "page_table", "kv_len"}


@dataclass(frozen=True, eq=False)
class Reading:
    """One way to read a dump, as arguments of `verdict`.

    words: what was assumed about the dump, for the note of the verdict. doubtful: counts only if
    the output is right in it.
    """

    out: object
    q: object
    arguments: dict
    words: tuple[str, ...]
    doubtful: bool = False

    def verdict(self, *, p_format: str | None = None, **how) -> Verdict:
        """Return the verdict on the dump, read this way."""
        told = self.arguments | ({} if p_format is None else {"p_format": p_format})
        found = verdict(self.out, self.q, **(told | how))
        dark = _not_finite(found)
        return replace(found, note="; ".join((*self.words, *dark)))


def _not_finite(found: Verdict) -> list[str]:
    """Return words for rows of the output that hold NaN or inf, if there are any."""
    rows = np.argwhere(~np.isfinite(found.out).all(-1))
    if not len(rows):
        return []
    shown = ", ".join(found.problem.row_name(*map(int, row)) for row in rows[:4])
    more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
    return [f"NaN or inf in {len(rows)} rows of the output: {shown}{more}"]


def audit(
    path: Path,
    *,
    scale: float | None = None,
    p_format: str | None = None,
    names: dict[str, str] | None = None,
    max_gib: float = DEFAULT_GIB,
    layout: str | None = None,
    heads: tuple[int, int] | None = None,
    named: bool = True,
) -> Verdict:
    """Judge the tensors of a file or a folder in one of the formats of `importers`.

    names: the file's own names for some of names.NAMES. If a layout or the base of lse is
    ambiguous, the first reading in which the output is right is used, or else the least wrong
    reading (see `judge`); the note of the verdict says which reading was used, and what was not
    read. layout: one of layouts.LAYOUTS; heads: of queries and of keys, for flat tensors.
    named: names of a bug are sought, which takes most of the time.
    Raises: ValueError naming the file and the tensor that is missing or malformed;
    FileNotFoundError.
    """
    take = Take(dict(names or {}), max_gib * GIB)
    tensors = read(path, take) | told(scale=scale, layout=layout, heads=heads)
    try:
        found = judge(tensors, p_format=p_format, named=named)
        found = gradients.with_gradients(found, layouts.apart(tensors))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return replace(found, note="; ".join(filter(None, (found.note, unread(take)))))


def told(**options) -> dict:
    """Return what a caller says about a dump, by the names of names.NAMES."""
    heads = options.pop("heads", None) or (None, None)
    options |= dict(zip(("q_heads", "kv_heads"), heads, strict=True))
    return {name: value for name, value in options.items() if value is not None}


def unread(take: Take) -> str:
    """Return words for the names of a file that were not read; "" if there are none."""
    names = sorted(set(take.unread))
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"without {', '.join(names[:12])}{more} (not read)" if names else ""


def read(path: Path, take: Take, *, needs: tuple[str, ...] = ("q", "out")) -> dict:
    """Read the tensors and numbers of a file or folder, under the names of names.NAMES.

    Raises: ValueError in one line for a file that cannot be read or lacks one of `needs`;
    FileNotFoundError.
    """
    path = Path(path)
    tensors = importers.read(path, take)
    has_q = {"q_nope", "qkv"} & tensors.keys()
    missing = [n for n in needs if n not in tensors and not (n == "q" and has_q)]
    if missing:
        there = ", ".join(tensors) or "none of a known name"
        if take.unread:
            not_known = ", ".join(sorted(set(take.unread))[:12])
            there += f"; not known: {not_known}; --map {missing[0]}=NAME names the tensor"
        raise ValueError(f"{path}: tensor {missing[0]} is missing; there are {there}")
    return tensors


def judge(
    tensors: dict,
    *,
    p_format: str | None = None,
    query: np.ndarray | None = None,
    named: bool = True,
) -> Verdict:
    """Judge tensors under our names by the first reading in which the output is right.

    If every reading is wrong, the reading counts in which the fewest elements exceed their bounds;
    among equals, the reading in which the fewest tests fail. Its mistake alone is named.
    query: q as another dump was read. Of wrong readings, those with this q are preferred. Of keys
    or queries in 8 bits, P in e4m3 is tried where P in 16 bits does not explain the output.

    Where both lse and lse2 are there, lse2 is judged in base 2, and then lse in either base.

    Raises: the ValueError of `verdict` for the first reading, if `verdict` refuses every reading.
    """
    how = {"p_format": p_format, "query": query, "named": named}
    if tensors.get("lse") is not None and tensors.get("lse2") is not None:
        of_lse2 = judge(tensors | {"lse": None}, **how)
        if of_lse2.answer == BUG:
            return of_lse2
        return judge(tensors | {"lse2": None}, **how)
    ways, wrong, refused = list(readings(tensors)), [], None
    if p_format is None and any(layouts.is_fp8(tensors.get(n)) for n in ("q", "k", "qkv", "kv")):
        ways += [_with_p_in_e4m3(reading) for reading in ways]
    for reading in ways:
        try:
            found = reading.verdict(p_format=p_format, named=named and len(ways) == 1)
        except ValueError as error:
            refused = refused or error
            continue
        if found.answer != BUG:
            return found
        if not reading.doubtful:
            wrong.append((reading, found))
    if not wrong:
        raise refused or ValueError("tensor k is missing, allowed: k and v, kv, or ckv and kpe")
    alike = [
        (reading, found)
        for reading, found in wrong
        if query is not None and np.array_equal(to_numpy(found.problem.q), query)
    ]
    reading, found = min(alike or wrong, key=lambda pair: wrongness(pair[1]))
    return reading.verdict(p_format=p_format) if named and len(ways) > 1 else found


def _with_p_in_e4m3(reading: Reading) -> Reading:
    words = (*reading.words, "P taken to be in e4m3")
    how = reading.arguments | {"p_format": "e4m3"}
    return replace(reading, arguments=how, words=words, doubtful=True)


def readings(tensors: dict) -> Iterator[Reading]:
    """Yield every way to read tensors under our names, the likeliest first.

    Raises: ValueError naming a tensor, its shape and what is allowed.
    """
    for name in tensors:
        if name not in NAMES and name not in REFUSED:
            raise ValueError(f"tensor {name} is unknown, allowed: {', '.join(NAMES)}")
    given = _plain(tensors)
    for layout in _layouts(given):
        for base in ("2", "e") if "lse" in given and "lse2" not in given else ("2",):
            yield _reading(given, layout, base)


def _plain(tensors: dict) -> dict:
    """Return the tensors with numbers as floats, with one window, and with q, K and V apart.

    The pages of K and V then lie as [pages, page_size, Hkv, D].
    """
    found = {name: value for name, value in tensors.items() if value is not None}
    for name, value in found.items():
        if name not in _NO_TENSORS and not hasattr(value, "ndim"):
            if not isinstance(value, list | tuple):
                raise ValueError(f"{name} is a {type(value).__name__}, allowed: a tensor")
            found[name] = np.asarray(value)
    meaning.refuse_unknown_mathematics(found)
    found = layouts.apart(meaning.with_one_window(found))
    found |= {n: meaning.number(n, found[n]) for n in _NUMBERS if n in found}
    if meaning.text(found.pop("kv_layout", "NHD")).upper() == "HND":
        for name in {"k", "v"} & found.keys():  # MLA's latent cache has no heads to move
            found[name] = swapped(found[name], found[name].ndim - 3)
    if "kv_indptr" in found and "kv_indices" in found:
        found |= _pages(found)
    found = layouts.with_shared_pool(found)
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
    if "layout" in given:
        return (given["layout"],)
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
        fits["sbhd"] = q.ndim == 4 and q.shape[1] == k.shape[1] and fits["bshd"]
    return tuple(name for name in (*LAYOUTS, "sbhd") if fits.get(name)) or LAYOUTS[:1]


def _reading(given: dict, layout: str, base: str) -> Reading:
    found, words = dict(given), []
    paged = "page_table" in found
    if layout != "bhsd":
        words.append(TAKEN_AS_BSHD if layout == "bshd" else TAKEN_AS_SBHD)
        for name in ("q", "out", *(() if paged else ("k", "v"))):
            if name in found and found[name].ndim == 4:
                first = swapped(found[name], 0) if layout == "sbhd" else found[name]
                found[name] = swapped(first)
    how = {name: found[name] for name in ("cu_seqlens_q", "scale", *_VARIANT) if name in found}
    how |= {"causal": found.get("causal", False), "layout": "bhsd"}
    if "q" in found and ("q_scale" in found or layouts.is_fp8(found["q"])):
        how["p_format"] = _p_format(found)
    for name in ("q", "k", "v"):
        if name in found:
            scale = found.get(f"{name}_scale")
            found[name] = layouts.dequantised(name, found[name], scale, found)
    q = found.get("q")
    if "q_nope" in found:
        q, how["cache"] = _latent(found)
        if "scale" not in found:
            raise ValueError("scale is missing, allowed with q_nope: a number, also from --scale")
    elif paged:
        how["cache"] = _paged(found)
    else:
        ends = found.get("cu_seqlens", found.get("kv_indptr"))
        how |= {"k": found.get("k"), "v": found.get("v"), "cu_seqlens": ends}
        how["kv_len"] = None if ends is not None else found.get("kv_len")
        if ends is not None and "kv_len" in found:
            lengths = np.diff(to_numpy(ends))
            if not np.array_equal(lengths, to_numpy(found["kv_len"])):
                raise ValueError(f"kv_len differs from cu_seqlens, allowed: {lengths.tolist()[:8]}")
    if "lse2" in found or "lse" in found:
        lse = found["lse2"] if "lse2" in found else found["lse"]
        how["lse2"] = _lse(lse, q, base)
        words += ["lse taken as a natural logarithm"] * (base == "e")
    return Reading(found["out"], q, how, tuple(words), layout == "sbhd")


def _paged(found: dict) -> SimpleNamespace:
    """Return a cache in pages."""
    names = ("k", "v", "page_table", "kv_len")
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{missing[0]} is missing, allowed with page_table: {', '.join(names)}")
    for name in ("k", "v"):
        if found[name].ndim != 4:
            shape = tuple(found[name].shape)
            raise ValueError(f"{name}.shape = {shape}, allowed: [pages, page_size, Hkv, D]")
    return SimpleNamespace(**{name: found[name] for name in names})


def _p_format(found: dict) -> str:
    """Return the format of P for a query in 8 bits: that of 16 bits in which tensors are saved."""
    known = {"float16": "fp16", "bfloat16": "bf16", "uint16": "bf16"}
    kinds = (str(found[name].dtype).removeprefix("torch.") for name in ("q", "out"))
    return next((known[kind] for kind in kinds if kind in known), "fp32")


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
