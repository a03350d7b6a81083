"""Others that append rows to a paged cache, and a plain copy of the same bytes.

Each is given the places of all rows, found outside its timed part.
"""

from collections.abc import Callable

from labkernels.measure import peers


def index_copy(cache, k_new, v_new, slots) -> Callable[[], object]:
    """torch's index_copy_ on the pools as one long row of slots. Shapes: slots [total_new]."""
    flat = [pool.flatten(0, 1) for pool in (cache.k, cache.v)]

    def run() -> None:
        for pool, rows in zip(flat, (k_new, v_new), strict=True):
            pool.index_copy_(0, slots, rows)

    return run


def flashinfer(cache, k_new, v_new, request, position) -> Callable[[], object]:
    """FlashInfer's append_paged_kv_cache; cache.kv_len holds the lengths after it.

    Shapes: request, position [total_new] int32: whose a row is, and its key's number there.
    """
    import flashinfer as library

    indptr, indices, last_page_len = peers.page_lists(cache)

    def run() -> object:
        return library.append_paged_kv_cache(
            k_new, v_new, request, position, (cache.k, cache.v), indices, indptr, last_page_len
        )

    return run


def plain_copy(k_new, v_new) -> Callable[[], object]:
    """The same bytes from and to contiguous memory."""
    import torch

    targets = [torch.empty_like(rows) for rows in (k_new, v_new)]

    def run() -> None:
        for target, rows in zip(targets, (k_new, v_new), strict=True):
            # an addition of nothing: a graph would hand a copy to the copy engines
            torch.add(rows, 0, out=target)

    return run
