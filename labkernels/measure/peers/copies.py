"""Copies of rows: torch's way to append them to a paged cache, and a plain copy of the bytes."""

from collections.abc import Callable

import torch

from labkernels.kernels.append.inputs import AppendInputs
from labkernels.kernels.call import Step
from labkernels.measure.peers.peer import PEER_POLICY, Peer, Pools


def _index_copy(inputs: AppendInputs) -> Step:
    """Prepare torch's index_copy_ on the pools as flat lists of slots, with the slots' indices."""
    pools = Pools(inputs.cache.k, inputs.cache.v)
    flat = [pool.flatten(0, 1) for pool in pools]

    def run() -> None:
        for pool, rows in zip(flat, (inputs.k_new, inputs.v_new), strict=True):
            pool.index_copy_(0, inputs.slots, rows)

    return Step(run, lambda: pools, version=f"torch {torch.__version__}")


def plain_copy(k_new, v_new) -> Callable[[], object]:
    """Return a function that copies the same bytes from and to contiguous memory."""
    targets = [torch.empty_like(rows) for rows in (k_new, v_new)]

    def run() -> None:
        for target, rows in zip(targets, (k_new, v_new), strict=True):
            # adding zero is a kernel; a graph would give a copy to the copy engines
            torch.add(rows, 0, out=target)

    return run


PEERS = (
    Peer(
        "torch_index_copy",
        "torch",
        "index_copy_ of all rows, at places found before",
        PEER_POLICY,
        {"append": _index_copy},
        lambda: None,
    ),
)
