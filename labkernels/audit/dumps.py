"""Turns tensors that a tool saved into arguments of `verdict`, whatever their names and layouts."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from labkernels.audit import descales, gradients, importers, layouts, meaning
from labkernels.audit.layouts import Layout, taken_as
from labkernels.audit.names import DEFAULT_GIB, NAMES, REFUSED, Take, may_matter
from labkernels.audit.verdict import MASKS, VARIANT, Way, first_right, verdict
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.truth.layouts import check_ends, integers
from labkernels.numerics.verdict.verdict import BUG, Verdict
from labkernels.units import LOG2_E, GiB

_NUMBERS = ("scale", "soft_cap")
_NO_TENSORS = {
    *_NUMBERS,
    *REFUSED,
    "causal",
    "is_causal",
    "mask_type",
    "kv_layout",
    "layout",
    "kv_dtype",
} | {name for name in NAMES if "window" in name or name.endswith(("_scale", "_heads"))}
_TABLE = ("page_table", "kv_len")
_CHANNELS = range(16, 257, 8)  # of a head that has no axis of its own
# Each of these tensors says where a request begins or ends.
_ENDS = {name for name in NAMES if "cu_seqlens" in name or name.endswith("indptr")}
_DIVISIONS = {"cu_seqlens", "cu_seqlens_q", "kv_indptr", "page_table", "kv_len"}


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

    names: the file's own names for some of names.NAMES. layout: one of layouts.LAYOUTS; heads: of
    queries and of keys, for flat tensors; the others as for `judge`. The note of the verdict says
    which reading was used, and what was not read.
    Raises: ValueError naming the file and the tensor that is missing or malformed;
    FileNotFoundError.
    """
    take = Take(dict(names or {}), max_gib * GiB)
    tensors = read(path, take) | told(scale=scale, layout=layout, heads=heads)
    try:
        found = judge(tensors, p_format=p_format, named=named)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return whole(found, take, path)


def whole(found: Verdict, take: Take, where: object) -> Verdict:
    """Return a verdict whose note says what was not read.

    Raises: ValueError for a bug where something was not read that may change what is right.
    """
    names = [name for name, value in take.unread.items() if may_matter(name, value)]
    if found.answer == BUG and names:
        raise ValueError(
            f"{where}: out is wrong by what was read, without {', '.join(names[:4])}; allowed: a "
            f"known name for that, --map OURS={names[0]}, or a dump without it"
        )
    unread = sorted(take.unread)
    more = f" and {len(unread) - 12} more" if len(unread) > 12 else ""
    words = f"without {', '.join(unread[:12])}{more} (not read)" if unread else ""
    return replace(found, note="; ".join(filter(None, (found.note, words))))


def told(**options) -> dict:
    """Return what a caller says about a dump, by the names of names.NAMES."""
    heads = options.pop("heads", None) or (None, None)
    options |= dict(zip(("q_heads", "kv_heads"), heads, strict=True))
    return {name: value for name, value in options.items() if value is not None}


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
            not_known = ", ".join(sorted(take.unread)[:12])
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
    among equals, the reading in which the fewest tests fail. Its mistake alone is named, which
    takes most of the time. query: q as another dump was read, which wrong readings should have. Of
    keys or queries in 8 bits, P in e4m3 is tried where P in 16 bits does not explain the output. Of
    lse and lse2, lse2 is judged in base 2, and then lse in either base.
    Raises: ValueError for names, tensors and layouts that cannot be judged; the ValueError of
    `verdict` for the first reading, if `verdict` refuses every reading.
    """
    how = {"p_format": p_format, "query": query, "named": named}
    if tensors.get("lse") is not None and tensors.get("lse2") is not None:
        of_lse2 = judge(tensors | {"lse": None}, **how)
        return of_lse2 if of_lse2.answer == BUG else judge(tensors | {"lse2": None}, **how)
    given = _plain(tensors)
    if not {"k", "ckv"} & given.keys() and "page_table" not in given:
        raise ValueError("tensor k is missing, allowed: k and v, kv, or ckv and kpe")
    formats = [(p_format, False)]
    if p_format is None and _may_round_p_to_8_bits(given):
        formats.append(("e4m3", True))
    ways = [
        Way(partial(_judged, taken, layout, base, p, guessed), np.inf if doubted else layout.doubt)
        for p, guessed in formats
        for number, taken in enumerate(descales.with_bytes_read(given))
        for doubted in (guessed or number > 0,)
        for layout in layouts.candidates(given)
        for base in (("2", "e") if "lse" in given else ("2",))
    ]
    ways += [
        Way(partial(_of_heads, tensors, n, p_format, query), np.inf) for n in _flat_heads(given)
    ]
    return first_right(ways, named=named, query=query)


def _flat_heads(given: dict) -> list[int]:
    """Return the numbers of heads with which tensors that fit one request may be [B, S, H D]."""
    q, k = (tuple(getattr(given.get(name), "shape", ())) for name in "qk")
    if (_DIVISIONS | {"layout"}) & given.keys() or len(q) != 3 or q != k:
        return []
    # told as many heads as the middle axis has, `layouts.apart` takes [T, H, D]
    return [
        n for n, rest in (divmod(q[-1], d) for d in _CHANNELS) if not rest and n > 1 and n != q[1]
    ]


def _of_heads(
    tensors: dict, heads: int, p_format: str | None, query: np.ndarray | None, *, named: bool
) -> Verdict:
    told = {"q_heads": heads, "kv_heads": heads}
    found = judge(tensors | told, p_format=p_format, query=query, named=named)
    note = f"[B, S, H D] of {heads} heads (else --heads)"
    return replace(found, note="; ".join(filter(None, (note, found.note))))


def _may_round_p_to_8_bits(given: dict) -> bool:
    """Return whether something says that products of 8 bits are taken."""
    scales = {"q_scale", "k_scale", "v_scale"} & given.keys()
    return bool(scales) or any(descales.is_fp8(given.get(name)) for name in "qkv")


def _plain(tensors: dict) -> dict:
    """Return tensors with one window, with numbers as floats, and with q, K and V apart."""
    found = {name: value for name, value in tensors.items() if value is not None}
    if isinstance(found.get("kv"), list | tuple) and len(found["kv"]) == 2:  # as FlashInfer takes
        found["k"], found["v"] = found.pop("kv")
    for name, value in found.items():
        if name not in NAMES and name not in REFUSED:
            raise ValueError(f"tensor {name} is unknown, allowed: {', '.join(NAMES)}")
        if name in _ENDS:
            found[name] = meaning.ends_of(name, meaning.tensor(name, value))
        elif name.endswith("_scale") or name == "kv_len":
            one = isinstance(value, int | float)
            found[name] = value if one else meaning.tensor(name, value)
        elif name not in _NO_TENSORS:
            found[name] = meaning.tensor(name, value)
    if np.ndim(found.get("kv_len", [0])) == 0 and "k" in found:  # flash-attn: of all requests
        batch = len(found.get("page_table", found["k"]))
        found["kv_len"] = np.full(batch, meaning.whole("kv_len", found["kv_len"]))
    meaning.refuse_unknown_mathematics(found)
    found = layouts.apart(meaning.with_one_window(found))
    found |= {n: meaning.number(n, found[n]) for n in _NUMBERS if n in found}
    if "alibi" in found:
        found["alibi"] = meaning.of_all_requests("alibi", found["alibi"])
    ends, q = found.get("cu_seqlens"), found.get("q")
    if ends is not None and "cu_seqlens_q" not in found and getattr(q, "ndim", 0) == 3:
        known = np.ravel(to_numpy(ends))
        if len(q) != len(known) - 1 and [len(q)] == known[-1:].tolist():  # as many tokens as k
            found["cu_seqlens_q"] = ends
    return found


def _judged(
    given: dict, layout: Layout, base: str, p_format: str | None, guessed: bool, *, named: bool
) -> Verdict:
    """Return the verdict on tensors in a layout, with lse to a base; the note says how."""
    found = layout.applied(given)
    told = taken_as(layout.q) if "layout" in given else ""
    words = [assumed for assumed in layout.words if assumed != told]
    if "kv_indices" in found:
        found |= _pages(found)
    found = layouts.with_shared_pool(found)
    if not _DIVISIONS & found.keys() and getattr(found.get("k"), "ndim", 0) == 3:
        found |= _one_request(found)
        words += ["one request of q [T, H, D] (else --heads)"] * (
            getattr(given.get("q"), "ndim", 0) == 3
        )
    how = {
        name: found[name] for name in ("cu_seqlens_q", "scale", *VARIANT, *MASKS) if name in found
    }
    how |= {"causal": found.get("causal", False), "layout": "bhsd"}
    if "q" in found and ("q_scale" in found or descales.is_fp8(found["q"])):
        how["p_format"] = _p_format(found)
    if p_format is not None:
        how["p_format"] = p_format
    words += [f"bytes taken as {found['bytes']}"] if "guessed" in found else []
    codes = [found.get(name) for name in "kv"]
    for name in ("q", "k", "v"):
        if name in found:
            scale = found.get(f"{name}_scale")
            found[name] = descales.dequantised(name, found[name], scale, found)
    q, keys = _query_and_keys(found)
    if "cache" in keys and all(descales.is_fp8(x) and hasattr(x, "detach") for x in codes):
        keys["cache"] = descales.with_codes(keys["cache"], codes, found)
    if "lse2" in found or "lse" in found:
        how["lse2"] = _lse(found["lse2"] if "lse2" in found else found["lse"], q, base)
        words += ["lse taken as a natural logarithm"] * (base == "e")
    of_output = verdict(found["out"], q, **(how | keys), named=named)
    words += [f"P taken to be in {p_format}"] * guessed
    found_too = gradients.with_gradients(of_output, found, how.get("lse2"))
    return replace(found_too, note="; ".join(words))


def _query_and_keys(found: dict) -> tuple:
    """Return q, and what says where its keys and values lie."""
    if "q_nope" in found:
        q, cache = _latent(found)
        if "scale" not in found:
            raise ValueError("scale is missing, allowed with q_nope: a number, also from --scale")
        return q, {"cache": cache}
    if "page_table" in found:
        return found.get("q"), {"cache": _cache(found, "k", "v", *_TABLE, beside="page_table")}
    ends = found.get("cu_seqlens", found.get("kv_indptr"))
    keys = {"k": found.get("k"), "v": found.get("v"), "cu_seqlens": ends}
    if ends is None:
        keys["kv_len"] = found.get("kv_len")
    elif "kv_len" in found:
        lengths = np.diff(to_numpy(ends))
        if not np.array_equal(lengths, to_numpy(found["kv_len"])):
            raise ValueError(f"kv_len differs from cu_seqlens, allowed: {lengths.tolist()[:8]}")
    return found.get("q"), keys


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
    pool = found["k"] if "k" in found else found.get("ckv")
    if getattr(pool, "ndim", 0) < 3:
        raise ValueError("tensor k is missing, allowed: a pool beside kv_indptr")
    if np.ndim(found["kv_indices"]) != 1 or "kv_indptr" not in found:
        raise ValueError("kv_indices, allowed: [pages of all requests] beside kv_indptr")
    size, ends = pool.shape[1], integers("kv_indptr", found["kv_indptr"])
    indices = integers("kv_indices", found["kv_indices"])
    check_ends("kv_indptr", ends, len(indices), exact=False)
    counts = np.diff(ends)
    before = np.maximum(counts - 1, 0) * size
    lens = integers("kv_len", found.get("kv_len", before + size))
    last = integers("kv_last_page_len", found.get("kv_last_page_len", lens - before))
    if "kv_len" in found and (before + last != lens)[counts > 0].any():
        raise ValueError("kv_len differs from kv_last_page_len, allowed: the same keys")
    if last.shape != counts.shape or not ((counts == 0) | ((last > 0) & (last <= size))).all():
        allowed = f"{len(counts)} numbers from 1 to {size}"
        raise ValueError(f"kv_last_page_len = {last.tolist()}, allowed: {allowed}")
    table = np.zeros((len(counts), max(1, int(counts.max(initial=0)))), np.int64)
    for b, n in enumerate(counts.tolist()):
        table[b, :n] = indices[ends[b] : ends[b] + n]
    return {"page_table": table, "kv_len": np.where(counts > 0, before + last, 0)}


def _cache(found: dict, *names: str, beside: str) -> SimpleNamespace:
    """Return a cache of the tensors of these names. Raises: ValueError for one that is missing."""
    for name in names:
        if name not in found:
            raise ValueError(f"{name} is missing, allowed with {beside}: {', '.join(names)}")
        if name in "kv" and found[name].ndim != 4:
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
    cache = _cache(found, "q_pe", "ckv", "kpe", *_TABLE, beside="q_nope")
    parts = (meaning.plain(x) for x in (cache.ckv, cache.kpe))
    cache.v, kpe = (x.reshape(*x.shape[:2], 1, -1) for x in parts)
    cache.k = np.concatenate([cache.v, kpe], -1)
    return (found["q_nope"], cache.q_pe), cache


def _lse(lse, q, base: str):
    """Return the log-sum-exp in base 2, in the shape of q without D."""
    values = meaning.plain(lse).astype(np.float64)
    values = layouts.of_rows(values, q[0] if isinstance(q, tuple) else q)
    return (values * (LOG2_E if base == "e" else 1.0)).astype(np.float32)
