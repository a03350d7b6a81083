"""Requests of one length as one dense tensor, which several libraries take."""

from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.decode.inputs import DecodeInputs
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import sums
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


def as_prefill(inputs: DecodeInputs) -> PrefillInputs:
    """Return a decode as a prefill of one token per request, whose keys left their pages.

    Raises: Refused if the requests hold different numbers of keys, or none.
    """
    work, table = inputs.workload, inputs.cache.page_table
    length, ones = work.kv_lens[0], (1,) * work.batch
    if {*work.kv_lens} != {length} or not length:
        raise Refused("kv_len differs between requests or is 0, and it takes one dense tensor")
    pages = table[:, : -(-length // work.page_size)].long()
    pools = (inputs.cache.k, inputs.cache.v)
    k, v = (x[pages].flatten(1, 2)[:, :length].flatten(0, 1) for x in pools)
    heads, how = (work.q_heads, work.kv_heads, work.head_dim), {"variant": work.variant}
    of = Prefill(ones, work.kv_lens, *heads, dtype=work.dtype, **how)
    q_ends, kv_ends = (sums(lengths, inputs.q) for lengths in (ones, work.kv_lens))
    return PrefillInputs(
        of, inputs.q, RaggedKV(k, v, kv_ends), q_ends, inputs.scale, inputs.options
    )


def tokens(x):
    """Return x [batch, heads, length, dim] as [batch x length, heads, dim]."""
    return x.transpose(1, 2).flatten(0, 1)
