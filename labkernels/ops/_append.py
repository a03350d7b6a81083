"""The verb `append`: new keys and values at each request's end, in the pages of a cache."""

import importlib

import numpy as np
import torch

from labkernels.kernels import spec as specs
from labkernels.kernels.append.run import AppendRequest, AppendStep
from labkernels.kernels.cuda_run import span_bytes
from labkernels.kernels.paged_kv import MAX_KEYS, PagedKV, require_device, require_rows
from labkernels.kernels.ragged_kv import read_lengths, require_cu_seqlens
from labkernels.kernels.step import Plan
from labkernels.ops import _arguments as arguments


def append(
    cache: PagedKV,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    cu_seqlens_new: torch.Tensor,
    *,
    target: str | None = None,
    checks: bool = False,
) -> Plan:
    """Write new keys and values behind the last ones of each request, and advance cache.kv_len.

    Shapes: k_new [total_new, kv_heads, head_dim], v_new alike with the channels of cache.v;
    cu_seqlens_new [batch + 1] int32: request i appends rows cu_seqlens_new[i] to [i + 1] - 1.
    Raises: ValueError naming the argument, its value and what is allowed, also if two requests
    would share a slot of a page that is written; then nothing is written.
    """
    step = append_step(cache, k_new, v_new, cu_seqlens_new, target=target, checks=checks)
    check_append(cache, cu_seqlens_new, len(k_new))
    step.run()
    return step.plan


def append_step(
    cache: PagedKV,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    cu_seqlens_new: torch.Tensor,
    *,
    target: str | None = None,
    checks: bool = False,
) -> AppendStep:
    """Prepare an append that runs again and again, as `append` but without reading contents.

    The plan depends on shapes alone; room in the pages is then the caller's part. A key beyond the
    page table is not written.
    Raises: ValueError naming the argument, its value and what is allowed.
    """
    _check_rows(cache, k_new, v_new, cu_seqlens_new)
    gpu = arguments.target_gpu(k_new.device, target)
    spec = specs.discover()["append"]
    instance = spec.instance(
        dtype=arguments.DTYPES[k_new.dtype], head_dim=cache.head_dim, group=1, gpu=gpu
    )
    request = AppendRequest(spec, instance, cache, k_new, v_new, cu_seqlens_new, gpu, checks)
    return importlib.import_module(spec.runner).prepare(request)


def check_append(cache: PagedKV, cu_seqlens_new: torch.Tensor, total_new: int) -> torch.Tensor:
    """Hold the contents of an append against the cache; reads both, so it waits for a GPU.

    Shapes: what it returns is kv_len after the append, [batch] int32, on the cache's device.
    Raises: ValueError naming the first offending entry.
    """
    cache.check_contents()
    n_new = read_lengths("cu_seqlens_new", cu_seqlens_new, total_new)
    before = cache.kv_len.cpu().numpy().astype(np.int64)
    after = before + n_new
    full = np.flatnonzero(~(after <= cache.max_kv_len))
    if full.size:
        request = full[0]
        raise ValueError(
            f"kv_len[{request}] = {before[request]} and {n_new[request]} new keys,"
            f" allowed: {cache.max_kv_len} in all, page_table.shape[1] * page_size"
        )
    kv_len = torch.from_numpy(after.astype(np.int32)).to(cache.kv_len.device)
    PagedKV(cache.k, cache.v, cache.page_table, kv_len).check_contents()
    _check_slots(cache, before, after)
    return kv_len


def _check_slots(cache: PagedKV, before: np.ndarray, after: np.ndarray) -> None:
    """Raise ValueError if a slot of a page that is written belongs to two entries of the table."""
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
    cache: PagedKV, k_new: torch.Tensor, v_new: torch.Tensor, cu_seqlens_new: torch.Tensor
) -> None:
    for name, rows, pool in (("k_new", k_new, cache.k), ("v_new", v_new, cache.v)):
        if rows.dtype != pool.dtype:
            raise ValueError(f"{name}.dtype = {rows.dtype}, allowed: {pool.dtype}, as the cache")
        if rows.dim() != 3 or rows.shape[1:] != pool.shape[2:]:
            allowed = f"[total_new, {pool.shape[2]}, {pool.shape[3]}]"
            raise ValueError(f"{name}.shape = {tuple(rows.shape)}, allowed: {allowed}")
        require_device(name, rows, pool.device)
        require_rows(name, rows)
        if any(_overlap(rows, other) for other in (cache.k, cache.v)):
            raise ValueError(f"{name} lies in the memory of the cache, allowed: memory of its own")
    if len(v_new) != len(k_new):
        raise ValueError(f"len(v_new) = {len(v_new)}, allowed: {len(k_new)}, len(k_new)")
    if not len(k_new) <= MAX_KEYS:
        raise ValueError(f"len(k_new) = {len(k_new)}, allowed: 0 to {MAX_KEYS}")
    require_cu_seqlens("cu_seqlens_new", cu_seqlens_new, cache.k.device)
    if len(cu_seqlens_new) != cache.batch + 1:
        raise ValueError(
            f"len(cu_seqlens_new) = {len(cu_seqlens_new)}, allowed: {cache.batch + 1}, the"
            " requests of the cache and one more"
        )


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not (a.numel() and b.numel()):
        return False
    spans = [(x.data_ptr(), x.data_ptr() + span_bytes(x)) for x in (a, b)]
    (first, stop), (other_first, other_stop) = spans
    return first < other_stop and other_first < stop
