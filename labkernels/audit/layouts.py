"""Layouts as words of axes, and tensors out of what tools pack and flatten.

Axes: b requests, h heads, s tokens of a request, t tokens of all requests, p pages, d channels.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np

from labkernels.audit.meaning import text, whole
from labkernels.numerics.arrays import to_numpy
from labkernels.units import require_choice

LAYOUTS = ("bhsd", "bshd", "sbhd", "thd", "nhd", "hnd")
_DENSE, _POOLS = LAYOUTS[:3], {"nhd": "pshd", "hnd": "phsd"}
_HERE = dict.fromkeys(_DENSE, "bhsd") | {"phsd": "pshd", "hsd": "shd"}  # how `verdict` takes them
_OF_QUERIES, _OF_KEYS = ("q", "out", "dout", "dq"), ("k", "v", "dk", "dv")
# Axes that have the same letter in two tensors have the same size: e are the channels of v.
_LETTERS = {"q": "bstphd", "out": "bstphe", "k": "bltpgd", "v": "bltpge"}


def arranged(tensor, there: str, here: str):
    """Return a view of a tensor with axes `there` in which they have the order of `here`.

    >>> arranged(np.zeros((2, 3, 4)), "sbd", "bsd").shape
    (3, 2, 4)
    """
    order = tuple(map(there.index, here))
    return tensor.permute(order) if hasattr(tensor, "detach") else tensor.transpose(order)


def taken_as(word: str, what: str = "tensors") -> str:
    """Return words for an assumption, for the note of a verdict."""
    names = {"p": "pages", "s": "page_size"} if "p" in word else {}
    return f"{what} taken as [{', '.join(names.get(x, x.upper()) for x in word)}]"


@dataclass(frozen=True)
class Layout:
    """The axes of q, of out, and of k and v; doubt as of verdict.Way."""

    q: str
    out: str
    k: str
    doubt: float = 1.0

    @property
    def words(self) -> tuple[str, ...]:
        """What is assumed, if anything is."""
        main = self.q if len(self.q) == 4 else self.k
        found = [taken_as(main)] if main in ("bshd", "sbhd") else []
        found += [taken_as(self.out, "out")] if self.out != self.q else []
        return (*found, *[taken_as(self.k, "pools")] * (self.k == "phsd"))

    def applied(self, given: dict) -> dict:
        """Return the tensors in the order of axes in which `verdict` takes them."""
        found, words = dict(given), dict.fromkeys(_OF_KEYS, self.k)
        words |= {"q": self.q, "dq": self.q, "out": self.out, "dout": self.out}
        for name in words.keys() & given.keys():
            tensor, word = given[name], words[name]
            if _is_flat(tensor, word, given.get("q")):
                tensor = _split_heads(name, tensor, given["q"].shape[self.q.index("h")])
            if tensor.ndim == len(word):
                found[name] = arranged(tensor, word, _HERE.get(word, word))
        return found


def candidates(given: dict) -> list[Layout]:
    """Return the layouts in which the sizes of the tensors agree, the likeliest first."""
    q, k, told = (given.get(name) for name in ("q", "k", "layout"))
    rank, rank_k, pool = getattr(q, "ndim", 3), getattr(k, "ndim", 0), is_pool("k", given)
    dense = _DENSE if told not in _DENSE else (told,)
    of_pool = _POOLS.get(text(given.get("kv_layout", "")).lower())
    words_q = {4: dense, 3: ("thd",)}.get(rank, ("hd",))
    if rank_k == 4:
        words_k = dense if not pool else (of_pool,) if of_pool else tuple(_POOLS.values())
    else:
        words_k = (of_pool[1:] if of_pool else "shd",)
    found = []
    words_out = _DENSE if rank == 4 else words_q  # transformers: out [B, S, H, D] beside others
    for a, c, b in itertools.product(words_q, words_out, words_k):
        one = rank == 4 and q.shape[a.index("s")] == 1  # a token's axis may lie anywhere
        alike = rank < 4 or rank_k < 4 or pool or one or a == b  # q and k lie alike
        if alike and _agree({"q": a, "out": c, "k": b, "v": b}, given):
            found.append(Layout(a, c, b))
    found.sort(key=lambda layout: layout.out != layout.q)
    for i, layout in enumerate(found[1:], 1):
        unusual = layout.out != layout.q or "sbhd" in (layout.q, layout.k) or layout.k == "phsd"
        found[i] = replace(layout, doubt=np.inf if unusual else 2.0)
    return found or [Layout(words_q[0], words_q[0], words_k[0])]


def _agree(words: dict[str, str], given: dict) -> bool:
    """Return whether axes of one name have one size, and query heads are a multiple of KV heads."""
    sizes: dict[str, int] = {}
    for name in words.keys() & given.keys():
        tensor, word = given[name], words[name]
        letters = word.translate(str.maketrans("bstphd", _LETTERS[name]))
        if name == "out" and _is_flat(tensor, word, given.get("q")):
            if not word.endswith("hd"):
                return False
            letters = letters[:-2]
        elif tensor.ndim != len(word):
            continue
        if any(sizes.setdefault(x, n) != n for x, n in zip(letters, tensor.shape, strict=False)):
            return False
    of_q, of_k = sizes.get("h", 0), sizes.get("g", 1)
    return of_k > 0 and of_q % of_k == 0


def _is_flat(out, word: str, q) -> bool:
    """Return whether an output has one axis for heads and channels, unlike q."""
    return getattr(q, "ndim", 0) == len(word) == out.ndim + 1 > 2


def apart(given: dict) -> dict:
    """Return the tensors with q, k and v apart, and heads apart.

    Raises: ValueError naming the tensor, its shape, and the option that says how it lies.
    """
    found = dict(given)
    heads = tuple(whole(n, found.pop(n)) if n in found else 0 for n in ("q_heads", "kv_heads"))
    if min(heads) < 0 or (heads[0] and heads[1] and heads[0] % heads[1]):
        raise ValueError(
            f"heads = {heads[0]}/{heads[1]}, allowed: query heads / KV heads, a multiple"
        )
    if "layout" in found:
        found |= _told(text(found.pop("layout")), found)
    _unpack(found, heads)
    found.pop("packing", None)
    for name in _OF_QUERIES if heads[0] > 1 and "layout" not in given else ():  # [B, 1, H D]
        if (shape := tuple(getattr(found.get(name), "shape", ()))) and shape[1:-1] == (1,):
            found[name] = _less(found[name], 1)
    _without_ones(found)
    _require_heads(found, heads[0])
    told = dict.fromkeys(_OF_QUERIES, heads[0]) | dict.fromkeys(_OF_KEYS, heads[1] or heads[0])
    shapes = {name: getattr(found.get(name), "shape", ()) for name in told}
    flat = heads[0] and "cu_seqlens" not in found
    flat = flat and any(len(shapes[n]) == 3 and shapes[n][1] != told[n] for n in "qk")
    for name, n in told.items():
        if shapes[name]:
            found[name] = _with_heads(name, found[name], n, found, flat=flat)
    q = found.get("q")
    _without_ones(found)
    if heads[0] and q is not None and heads[0] not in q.shape[:-1]:
        raise ValueError(f"heads = {heads[0]}, allowed: those of q.shape = {tuple(q.shape)}")
    flat = [n for n in "kv" if is_pool(n, found) and getattr(found.get(n), "ndim", 0) == 3]
    if flat == ["k"] and "v" not in found and "q_nope" not in found:  # of one head, K and V
        found["k"] = found["k"][:, :, None]
    elif len(flat) == 2:
        found |= {name: found[name][:, None] for name in flat}  # SGLang's, of one key a page
    return found


def _without_ones(found: dict) -> None:
    """Take an axis of one request, or of one token, off beside the ends of several requests."""
    for ends, names in (("cu_seqlens_q", _OF_QUERIES), ("cu_seqlens", _OF_KEYS)):
        total = np.ravel(to_numpy(found[ends]))[-1:] if ends in found else None
        for name in names if total is not None else ():
            shape = getattr(found.get(name), "shape", ())
            if len(shape) == 4 and 1 in shape[:3]:
                x = found[name] = _less(found[name], next(i for i in (0, 1, 2) if shape[i] == 1))
                if total not in x.shape[:1] and total in x.shape[1:2]:  # [1, H, T, D]
                    found[name] = arranged(x, "htd", "thd")


def _less(tensor, axis: int):
    """Return the tensor without an axis, of which it has one."""
    return tensor[(slice(None),) * axis + (0,)]


def _require_heads(found: dict, heads: int) -> None:
    """Raise where heads are not told, and q and k of three axes can be no [T, H, D]."""
    q, k = (getattr(found.get(name), "shape", ()) for name in "qk")
    if not heads and len(k) == 4 and q[1:-1] == (1,) and q[-1] in range(2 * k[-1], 2**31, k[-1]):
        raise ValueError(
            f"q.shape = {tuple(q)}, allowed: [B, H, D], or with --heads Q/KV [B, 1, H D]"
        )
    paged = {"kv_layout", "page_table", "kv_indices"} & found.keys()
    if heads or paged or not len(q) == len(k) == 3:
        return
    if q[-1] != k[-1] or q[-2] % max(k[-2], 1):
        shapes = f"q.shape = {tuple(q)}, k.shape = {tuple(k)}"
        raise ValueError(f"{shapes}, allowed: [T, H, D], or with --heads Q/KV [B, S, H D]")


def _told(told: str, given: dict) -> dict:
    """Return the layout that is told; NHD and HND are those of the cache."""
    layout = told.lower().partition("_")[0].replace("2", "").replace("3", "")
    require_choice("layout", layout, LAYOUTS)
    if layout in _POOLS:
        return {"kv_layout": given.get("kv_layout", layout)}
    return {"layout": layout, "packing": told.lower()}


def _unpack(found: dict, heads: tuple[int, int]) -> None:
    """Take q, k and v out of one tensor, and k and v out of one."""
    if "qkv" in found:
        qkv, (q_heads, kv_heads) = found.pop("qkv"), heads
        if (axis := _packed_axis("qkv", qkv, found)) is not None:
            found |= zip("qkv", _parts(qkv, axis), strict=True)
        elif q_heads:
            kv_heads = kv_heads or q_heads
            qkv = qkv.reshape(*qkv.shape[: min(2, qkv.ndim - 1)], -1)
            flat = _split_heads("qkv", qkv, q_heads + 2 * kv_heads)
            ends = (0, q_heads, q_heads + kv_heads, q_heads + 2 * kv_heads)
            parts = zip("qkv", ends, ends[1:], strict=False)
            found |= {name: flat[..., a:b, :] for name, a, b in parts}
        else:
            allowed = "[..., 3, H, D], or with --heads Q/KV [..., (Q + 2 KV) D]"
            raise ValueError(f"qkv.shape = {tuple(qkv.shape)}, allowed: {allowed}")
        if axis != 0:  # [3, B, ...] may have its heads before its tokens
            found.setdefault("layout", "bshd")
        if "cu_seqlens" in found:
            found.setdefault("cu_seqlens_q", found["cu_seqlens"])
    if "kv" not in found:
        return
    kv, paged, q = found.pop("kv"), is_pool("k", found), found.get("q")
    if paged and kv.ndim == 4 and kv.shape[-1] == 2 * getattr(q, "shape", [0])[-1]:
        half = kv.shape[-1] // 2  # vLLM's pool [pages, Hkv, page_size, 2 D]
        found["k"], found["v"] = kv[..., :half], kv[..., half:]
        return
    if paged and (kv.ndim == 3 or (kv.ndim == 4 and 1 in kv.shape[1:3])):  # FlashMLA: K holds V
        found["k"] = kv
        return
    axis = -3
    if heads[1] and not paged and kv.ndim in (2, 3):
        kv = _split_heads("kv", kv, 2 * heads[1])
        kv = kv.reshape(*kv.shape[:-2], 2, heads[1], kv.shape[-1])
    elif paged:  # pools [pages, 2, page_size, Hkv, D], or of vLLM [2, pages, page_size, Hkv, D]
        axis = int(kv.ndim == 5 and kv.shape[1] == 2)
    else:
        axis = _packed_axis("kv", kv, found)
    if kv.ndim not in ((5,) if paged else (4, 5)) or axis is None or kv.shape[axis] != 2:
        allowed = "[pages, 2, page_size, Hkv, D], [pages, Hkv, page_size, 2 D], [..., 2, Hkv, D]"
        raise ValueError(f"kv.shape = {tuple(kv.shape)}, allowed: {allowed}")
    found["k"], found["v"] = _parts(kv, axis)


def _packed_axis(name: str, packed, found: dict) -> int | None:
    """Return the axis of Q, K and V in [..., 3, H, D], in [..., H, 3, D] or in [3, B, ...].

    Raises: ValueError if the tensors may lie side by side along the first axis or along another.
    """
    n, told = len(name), found.get("packing", "")
    axes = (-2, -3) if f"h{n}d" in told else (-3, -2)
    axis = next((i for i in axes if packed.ndim >= 4 and packed.shape[i] == n), None)
    if packed.ndim != 5 or packed.shape[0] != n or told:
        return axis
    rows = found.get("q", found.get("out"))
    batch = rows.shape[0] if getattr(rows, "ndim", 0) == 4 else None
    first = batch in (None, packed.shape[1])
    if first and axis is not None and batch in (None, n):
        words = f"{name[0]} and {name[-1]}" if n == 2 else "q, k and v"
        raise ValueError(
            f"{name}.shape = {tuple(packed.shape)} has {n} along several axes, allowed: {words} "
            "apart"
        )
    return 0 if first else axis


def _parts(packed, axis: int) -> list:
    """Return the tensors that lie beside each other along an axis."""
    where = (slice(None),) * (axis % packed.ndim)
    return [packed[(*where, i)] for i in range(packed.shape[axis])]


def _with_heads(name: str, tensor, heads: int, found: dict, *, flat: bool):
    """Return [..., H D] as [..., H, D] where heads are told or must be; flat: q or k is flat."""
    all_flat, flat = flat, tensor.ndim == 2 and "q_nope" not in found
    if flat and name in _OF_QUERIES:
        of_q = getattr(found.get("q"), "ndim", 0) == 3  # by which an output is split
        flat = not of_q and getattr(found.get("k"), "ndim", 0) != 3  # or of one token
    told = heads and (
        (tensor.ndim in (2, 3) and tensor.shape[-2] != heads) or (all_flat and tensor.ndim == 3)
    )
    if flat and not heads:
        raise ValueError(
            f"{name}.shape = {tuple(tensor.shape)}, allowed with --heads Q/KV: [T, H D]"
        )
    return _split_heads(name, tensor, heads) if told or flat else tensor


def _split_heads(name: str, tensor, heads: int):
    if not heads or tensor.shape[-1] % heads:
        raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: [..., {heads} x D]")
    return tensor.reshape(*tensor.shape[:-1], heads, tensor.shape[-1] // heads)


def is_pool(name: str, found: dict) -> bool:
    """Return whether a tensor lies in pages."""
    return name in ("k", "v") and bool({"page_table", "kv_indices"} & found.keys())


def with_shared_pool(found: dict) -> dict:
    """Return the tensors with V as the first channels of K, where a pool holds both (FlashMLA)."""
    k, v, out = (found.get(name) for name in ("k", "v", "out"))
    if k is None or v is not None or "q_nope" in found or not is_pool("k", found):
        return found
    if k.ndim != 4 or k.shape[2] != 1 or out is None or not out.shape[-1] <= k.shape[3]:
        raise ValueError("tensor v is missing, allowed without it: one KV head that holds K and V")
    return found | {"v": k[..., : out.shape[-1]]}


def of_rows(lse: np.ndarray, q) -> np.ndarray:
    """Return a number for each row in the shape of q [B, H, S, D] or [T, H, D] without D.

    A last axis may have one number.
    """
    shape, word = tuple(q.shape[:-1]), "bhs" if q.ndim == 4 else "th"[: q.ndim - 1]
    sizes = [tuple(n for n in x if n > 1) for x in (lse.shape, shape)]
    if sizes[0] == sizes[1] and lse.ndim != len(word):
        return lse.reshape(shape)
    ones = [i for i, n in enumerate(lse.shape) if n == 1]
    values = _less(lse, ones[-1]) if lse.ndim == len(word) + 1 and ones else lse
    for there in ("bhs", "bsh", "sbh", "th", "ht"):
        if len(there) == len(word) == values.ndim and set(there) == set(word):
            found = arranged(values, there, word)
            if found.shape == shape:
                return found
    return values
