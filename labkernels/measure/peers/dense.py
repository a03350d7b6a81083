"""Requests of one length as one dense tensor, which several libraries take."""

from labkernels.kernels.prefill.workload import Prefill
from labkernels.measure.peers.peer import Refused


def dense(x, batch: int):
    """Return x [batch x length, heads, dim] as a view [batch, heads, length, dim]."""
    return x.view(batch, len(x) // batch, *x.shape[1:]).transpose(1, 2)


def dense_batch(work: Prefill) -> int:
    """Return the number of requests of a workload that fit in one dense tensor.

    Raises: Refused for any other workload.
    """
    if work.page_size is not None:
        raise Refused("dense tensors have no pages")
    if len(set(work.q_lens)) != 1 or work.q_lens != work.kv_lens:
        raise Refused("lengths differ, and this library takes one dense tensor")
    if work.group != 1:
        raise Refused("dense kernels are timed with one query head per KV head")
    return work.batch


def tokens(x):
    """Return x [batch, heads, length, dim] as [batch x length, heads, dim]."""
    return x.transpose(1, 2).flatten(0, 1)
