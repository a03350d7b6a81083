"""The verb `append`: write new keys and values after the last key of each request in a cache."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from labkernels.cuda.launch import span_bytes
from labkernels.kernels import checks as arguments
from labkernels.kernels.append.call import AppendCall
from labkernels.kernels.caches.page_guard import guarded
from labkernels.kernels.caches.paged import PagedHeads, PagedKV, QuantizedKV, check_pages
from labkernels.kernels.call import Asked, Step, check_options, in_graph, keep, kept, nothing
from labkernels.kernels.checks import (
    DTYPES,
    KV_DTYPES,
    MAX_KEYS,
    read_lengths,
    require_cu_seqlens,
    require_device,
    require_place,
    require_query,
    require_rows,
    resolved,
)
from labkernels.kernels.choice import Ask, choose
from labkernels.kernels.kernel import Kernel, Shape, head_dim_v


def append(
    cache: PagedKV | QuantizedKV,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    cu_seqlens_new: torch.Tensor,
    *,
    rotary: Sequence[torch.Tensor] | None = None,
    interleaved: bool = False,
    new_lens: Sequence[int] | None = None,
    kv_lens: Sequence[int] | None = None,
    target: str | None = None,
    checks: bool = False,
) -> Step[None]:
    """Write new keys and values after the last ones of each request, and advance cache.kv_len.

    Shapes: k_new [total_new, kv_heads, head_dim], v_new the same with the channels of cache.v;
    cu_seqlens_new [batch + 1] int32: request i appends rows cu_seqlens_new[i] to [i + 1] - 1. To a
    QuantizedKV, rows of 16 bits are appended: each number is divided by its scale, which the caller
    sets before, in fp32, and rounded to the nearest code, ties to even; beyond the largest finite
    code it becomes that code, and NaN stays NaN.
    rotary: cosines and sines (cos, sin), [positions, dim / 2] each, in fp32 or as k_new. The new
    key with place p in its request is rotated by row p before it is written: of its first dim
    channels, c and c + dim / 2 are a pair (as in Llama and GPT-NeoX), or 2 c and 2 c + 1 if
    interleaved (GPT-J); a pair (a, b) becomes (a cos - b sin, b cos + a sin). Both products and the
    sum are rounded to fp32, and the sum to the dtype of k_new: with u = 2^-24, the error is at most
    half a step of the dtype and (2 u + u^2) (|a cos| + |b sin|). Values are not rotated.
    new_lens, kv_lens: the numbers of new rows and of earlier keys per request, if the caller's host
    knows them. If both are given, nothing is read from a GPU, and the caller must keep the pages in
    range.
    Raises: ValueError naming the argument, its value and what is allowed, also if two requests
    would share a slot of a page that is written; then nothing is written.

    >>> pages = torch.zeros(2, 2, 16, 1, 64).half()
    >>> cache = PagedKV(*pages, torch.tensor([[0], [1]]).int(), torch.tensor([5, 0]).int())
    >>> new, ends = torch.ones(3, 1, 64).half(), torch.tensor([0, 1, 3]).int()
    >>> _ = append(cache, new, new, ends)
    >>> cache.kv_len.tolist(), cache.k[0, 5, 0, 0].item()
    ([6, 2], 1.0)

    >>> angles = torch.arange(32)[:, None] * 10_000 ** (-torch.arange(0, 64, 2) / 64)  # 32 places
    >>> _ = append(cache, new, new, ends, rotary=(angles.cos(), angles.sin()))
    >>> cache.k[0, 6, 0, 0] == (torch.tensor(6.0).cos() - torch.tensor(6.0).sin()).half()
    tensor(True)
    """
    if torch.compiler.is_compiling():
        if not isinstance(cache, PagedKV):
            arguments.refuse_kind("cache", cache, "PagedKV in a graph of torch.compile")
        tensors = (*cache.tensors.values(), k_new, v_new, cu_seqlens_new)
        known = {"new_lens": new_lens, "kv_lens": kv_lens, "target": target, "checks": checks}
        how = {"rotary": rotary and list(rotary), "interleaved": interleaved}
        return in_graph("append", nothing, *tensors, **known, **how)
    k_new, v_new, cu_seqlens_new = map(resolved, (k_new, v_new, cu_seqlens_new))
    how = {"rotary": rotary, "interleaved": interleaved, "target": target, "checks": checks}
    step = append_step(cache, k_new, v_new, cu_seqlens_new, **how)
    lengths_after(cache, cu_seqlens_new, len(k_new), new_lens, kv_lens, rotary)
    step.run()
    return step


def append_step(
    cache: PagedKV | QuantizedKV,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    cu_seqlens_new: torch.Tensor,
    *,
    rotary: Sequence[torch.Tensor] | None = None,
    interleaved: bool = False,
    q: torch.Tensor | None = None,
    q_in_order: bool = True,
    kernel: str | Kernel | None = None,
    tile: str | None = None,
    target: str | None = None,
    checks: bool = False,
) -> Step[Any]:
    """Prepare an append that can run many times; like `append`, but contents are not read.

    The plan depends only on shapes. The caller must keep room in the pages. A key beyond the
    page table, or beyond the rows of rotary, is not written.
    q [total_new, q_heads, head_dim]: queries of the new tokens. The step's outputs() are then these
    queries, rotated in the same launch at the positions of the new keys; unless q_in_order, all of
    a request at that of its first new key, as flash-attn does without a mask.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> pages, ends = torch.zeros(2, 1, 16, 1, 64).half(), torch.tensor([0, 2]).int()
    >>> cache = PagedKV(*pages, torch.zeros(1, 1).int(), torch.zeros(1).int())
    >>> step = append_step(cache, torch.ones(2, 1, 64).half(), torch.ones(2, 1, 64).half(), ends)
    >>> step.run()
    >>> step.run()
    >>> cache.kv_len.item()
    4
    """
    if not isinstance(cache, PagedHeads):
        arguments.refuse_kind("cache", cache, "PagedKV, QuantizedKV")
    asked = Asked(kernel=kernel, tile=tile, target=target, checks=checks)
    read = {"k_new": k_new, "v_new": v_new}
    if not (rotary is None and q is None):
        read |= _rotation(rotary, interleaved, q)
    arguments.require_no_gradient("append", k=cache.k, v=cache.v, **read)
    found = arguments.facts(*read.values(), cu_seqlens_new, names=(*read, "cu_seqlens_new"))
    facts = ("append", *found, cache.facts, bool(interleaved), q_in_order)
    call = kept(facts, asked)
    if call is None:
        _check_rows(cache, k_new, v_new, cu_seqlens_new)
        call = keep(facts, asked, _checked(cache, read, interleaved, asked))
    call = call.on(cache=cache, read=read, cu_seqlens_new=cu_seqlens_new, in_order=q_in_order)
    _check_places(call)
    if q is not None:
        call = call.on(rotated=torch.empty(q.shape, dtype=q.dtype, device=q.device))
    step = call.choice.kernel.prepare(call)
    return guarded(step, call, cache, cu_seqlens_new=cu_seqlens_new) if checks else step


def _rotation(
    rotary: Sequence[torch.Tensor] | None, interleaved: bool, q: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Return the tensors that a rotation reads, by name; they are not checked yet."""
    if not (isinstance(rotary, Sequence) and len(rotary) == 2):
        arguments.refuse_kind("rotary", rotary, "(cos, sin), or None without q")
    if not isinstance(interleaved, bool):
        raise ValueError(f"interleaved = {interleaved!r}, allowed: True, False")
    found = dict(zip(("cos", "sin"), map(resolved, rotary), strict=True))
    return found if q is None else found | {"q": q}


def _checked(
    cache: PagedHeads, read: dict[str, torch.Tensor], interleaved: bool, asked: Asked
) -> AppendCall:
    """Return the checked call of these arguments without its tensors: only their facts count."""
    check_options(asked)
    k_new, rotary = read["k_new"], None
    gpu = arguments.target_gpu(k_new.device, asked.target)
    sizes = (cache.head_dim, head_dim_v(cache.head_dim))  # V may have any width
    kv_dtype = KV_DTYPES.get(cache.k.dtype)
    kind = DTYPES[k_new.dtype]
    if "cos" in read:
        _check_rotation(cache, read)
        rotary = ("neighbours" if interleaved else "halves", DTYPES[read["cos"].dtype])
    how = {"kv_dtype": kv_dtype, "rotary": rotary}
    how["of_blocks"] = isinstance(cache, QuantizedKV) and cache.of_blocks
    shape = Shape(kind, *sizes, 1, 1, "paged", cache.page_size, **how)
    choice = choose("append", shape, gpu, Ask(asked.kernel, asked.tile))
    return AppendCall(choice=choice, gpu=gpu, device=k_new.device, checks=asked.checks)


def lengths_after(
    cache: PagedHeads,
    cu_seqlens_new: torch.Tensor,
    total_new: int,
    new_lens: Sequence[int] | None = None,
    kv_lens: Sequence[int] | None = None,
    rotary: Sequence[torch.Tensor] | None = None,
) -> np.ndarray:
    """Return the keys of each request after an append, int64 [batch], for which there is room.

    Lengths that are not given are read, which waits for a GPU.
    Raises: ValueError naming the first offending entry.
    """
    n_new = read_lengths("cu_seqlens_new", cu_seqlens_new, total_new, new_lens, "new_lens")
    known = None not in (new_lens, kv_lens) and cache.k.is_cuda
    if not known:
        cache.require_contents()
    before = cache.read_lengths(kv_lens)
    after = before + n_new
    full = np.flatnonzero(~(after <= cache.max_kv_len))
    if full.size:
        request = full[0]
        raise ValueError(
            f"kv_len[{request}] = {before[request]} and {n_new[request]} new keys,"
            f" allowed: {cache.max_kv_len} in all, page_table.shape[1] * page_size"
        )
    for request in np.flatnonzero((n_new > 0) & (after > len(rotary[0]))) if rotary else ():
        allowed = f"{after[request]} or more, the keys of request {request} after the append"
        raise ValueError(f"len(cos) = {len(rotary[0])}, allowed: {allowed}")
    if not known:
        kv_len = torch.from_numpy(after.astype(np.int32))
        check_pages(cache.page_table, kv_len, sizes=cache.k.shape[:2])
        _check_slots(cache, before, after)
    return after


def _check_slots(cache: PagedHeads, before: np.ndarray, after: np.ndarray) -> None:
    """Raise ValueError if the append would write a slot that two entries of the table own."""
    table, size = cache.page_table.cpu().numpy(), cache.page_size
    first_key = np.arange(table.shape[1]) * size
    begin, end = (np.clip(n[:, None] - first_key, 0, size) for n in (before, after))
    # an entry holds slots [0, end) of its page, of which [begin, end) are written
    holds = (end > 0) & np.isin(table, table[begin < end])
    seen: dict[int, list[tuple[int, int, int]]] = {}
    for request, entry in np.argwhere(holds).tolist():
        page, first, stop = (int(x[request, entry]) for x in (table, begin, end))
        for other, other_first, other_stop in seen.setdefault(page, []):
            shared = min(stop, other_stop)
            if first < shared or other_first < shared:
                raise ValueError(
                    f"page_table[{request}, {entry}] = {page}, allowed: a page of its own, since"
                    f" request {other} holds keys where new ones would be written"
                )
        seen[page].append((request, first, stop))


def _check_rows(
    cache: PagedHeads, k_new: torch.Tensor, v_new: torch.Tensor, cu_seqlens_new: torch.Tensor
) -> None:
    for name, rows, pool in (("k_new", k_new, cache.k), ("v_new", v_new, cache.v)):
        if rows.dtype not in arguments.beside(pool):
            allowed = ", ".join(map(str, arguments.beside(pool)))
            raise ValueError(f"{name}.dtype = {rows.dtype}, allowed: {allowed}, as the cache")
        if rows.dim() != 3 or rows.shape[1:] != pool.shape[2:]:
            allowed = f"[total_new, {pool.shape[2]}, {pool.shape[3]}]"
            raise ValueError(f"{name}.shape = {tuple(rows.shape)}, allowed: {allowed}")
        require_device(name, rows, pool.device)
        require_rows(name, rows)
    if v_new.dtype != k_new.dtype:
        raise ValueError(f"v_new.dtype = {v_new.dtype}, allowed: {k_new.dtype}, as k_new")
    if len(v_new) != len(k_new):
        raise ValueError(f"len(v_new) = {len(v_new)}, allowed: {len(k_new)}, len(k_new)")
    if not len(k_new) <= MAX_KEYS:
        raise ValueError(f"len(k_new) = {len(k_new)}, allowed: 0 to {MAX_KEYS}")
    device = cache.k.device
    require_cu_seqlens("cu_seqlens_new", cu_seqlens_new, device, cache.batch, "the cache")


def _check_rotation(cache: PagedHeads, read: dict[str, torch.Tensor]) -> None:
    """Raise ValueError unless cosines, sines and queries fit the new keys."""
    k_new, cos, sin = (read[name] for name in ("k_new", "cos", "sin"))
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dtype not in (torch.float32, k_new.dtype):
            allowed = f"torch.float32, {k_new.dtype}, as k_new"
            raise ValueError(f"{name}.dtype = {table.dtype}, allowed: {allowed}")
        if table.dim() != 2:
            raise ValueError(f"{name}.shape = {tuple(table.shape)}, allowed: [positions, dim / 2]")
        require_device(name, table, cache.k.device)
        require_rows(name, table)
    if (sin.dtype, sin.shape) != (cos.dtype, cos.shape):
        allowed = f"{cos.dtype} {tuple(cos.shape)}, as cos"
        raise ValueError(f"sin is {sin.dtype} {tuple(sin.shape)}, allowed: {allowed}")
    width, most = cos.shape[1], cache.head_dim // 2
    if not (0 < width <= most and width % 8 == 0):
        allowed = f"multiples of 8 to {most}, half of the channels"
        raise ValueError(f"cos.shape[1] = {width}, allowed: {allowed}")
    if "q" in read:
        sizes = (cache.head_dim, cache.kv_heads, "[total_new, q_heads, head_dim]")
        require_query(read["q"], k_new, *sizes, (k_new.dtype,))
        if len(read["q"]) != len(k_new):
            raise ValueError(f"len(q) = {len(read['q'])}, allowed: {len(k_new)}, len(k_new)")


def _check_places(call: AppendCall) -> None:
    """Raise ValueError if what is read is not aligned for copies, or lies in the cache."""
    *rows, k_pool, v_pool = call.once(_extents)
    for (name, tensor), n_bytes in zip(call.read.items(), rows, strict=True):
        require_place(name, tensor)
        for pool, pool_bytes in zip(call.cache.pools, (k_pool, v_pool), strict=True):
            behind = pool.data_ptr() - tensor.data_ptr()
            if n_bytes and pool_bytes and -pool_bytes < behind < n_bytes:
                allowed = "memory of its own"
                raise ValueError(f"{name} lies in the memory of the cache, allowed: {allowed}")


def _extents(call: AppendCall) -> list[int]:
    """Return the byte ranges of what is read and the pools; none on torch's meta device."""
    tensors = (*call.read.values(), *call.cache.pools)
    return [0 if x.is_meta else span_bytes(x) for x in tensors]
