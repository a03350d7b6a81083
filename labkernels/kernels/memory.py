"""Which tensors of a call may share memory, and the check that no others do."""

from collections.abc import Mapping

import torch

from labkernels.cuda.launch import span_bytes

QUERIES = ("q", "q_nope")


def require_apart(
    written: Mapping[str, torch.Tensor | None], others: Mapping[str, torch.Tensor]
) -> None:
    """Raise ValueError if a written tensor shares memory with another tensor, gaps included.

    Arguments that are not tensors are skipped. `out` may be the query itself: all blocks of a
    tile read its rows of q before one of them writes the same rows of out.
    """
    given = {name: tensor for name, tensor in written.items() if isinstance(tensor, torch.Tensor)}
    for name, tensor in given.items():
        for other, place in {**others, **given}.items():
            if other == name or not overlap(tensor, place):
                continue
            if name == "out" and other in QUERIES and _same_place(tensor, place):
                continue
            raise ValueError(f"{name} lies in the memory of {other}, allowed: memory of its own")


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether the memory of two tensors, gaps included, has bytes in common."""
    if a.is_meta or not (a.numel() and b.numel()):
        return False
    first, other = a.data_ptr(), b.data_ptr()
    return first < other + span_bytes(b) and other < first + span_bytes(a)


def _same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    places = [(x.data_ptr(), x.dtype, x.shape, x.stride()) for x in (a, b)]
    return places[0] == places[1]
