"""Requests that share a prefix: what a decode gains that reads the prefix once."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from labkernels.experiments.timed import GridCell, Timed
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.call import Attention, Step
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.operation import OPERATION
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import Draw
from labkernels.measure.implementation import Implementation, implementations
from labkernels.measure.peers import flashinfer
from labkernels.measure.peers.peer import PEER_POLICY
from labkernels.ops.cascade import cascade_decode_step
from labkernels.policy import TENSOR_CORES
from labkernels.records import schema

OWN = 256  # keys of a request after the prefix
SHAPES = ((64, 8192), (64, 1024), (8, 8192), (64, 32768))  # requests, keys of the prefix
Q_HEADS, KV_HEADS = 32, 8
WITHOUT = ("decode_mma_n8", "flashinfer_fa2")  # read the prefix for every request


def grid(*, quick: bool = False) -> Iterator[GridCell]:
    """Yield the workloads; `quick` has one small one."""
    for batch, prefix in ((4, 64),) if quick else SHAPES:
        work = Decode.uniform(batch, prefix + OWN, q_heads=Q_HEADS, kv_heads=KV_HEADS)
        yield GridCell(work, f"a prefix of {prefix}")


def inputs_of(workload: Decode, draw: Draw) -> DecodeInputs:
    """Return a decode's inputs whose requests have the same pages, except for their last keys."""
    inputs = decode_inputs(workload, draw)
    table = inputs.cache.page_table
    shared = (workload.kv_lens[0] - OWN) // workload.page_size
    table[:, :shared] = table[:1, :shared].clone()
    return inputs


def parted(inputs: DecodeInputs) -> tuple[PagedKV, PagedKV]:
    """Return the cache of the prefix, of one request, and that of the requests' own keys."""
    cache, lens = inputs.cache, inputs.cache.kv_len - OWN
    shared = (inputs.workload.kv_lens[0] - OWN) // cache.page_size
    tables = (x.contiguous() for x in (cache.page_table[:1, :shared], cache.page_table[:, shared:]))
    lengths = (lens[:1].clone(), torch.full_like(lens, OWN))
    prefix, own = (
        PagedKV(cache.k, cache.v, table, n) for table, n in zip(tables, lengths, strict=True)
    )
    return prefix, own


def _ours(inputs: DecodeInputs) -> Step[Attention]:
    return cascade_decode_step(inputs.q, *parted(inputs), scale=inputs.scale)


def _peers(inputs: DecodeInputs) -> Step[Attention]:
    return flashinfer.cascade_step(inputs.q, *parted(inputs), scale=inputs.scale)


CASCADES = (
    Implementation("cascade_decode", "cascade_decode", "cuda", TENSOR_CORES, "", _ours),
    Implementation(
        "flashinfer_cascade",
        "flashinfer_cascade",
        flashinfer.LIBRARY,
        PEER_POLICY,
        "",
        _peers,
        flashinfer.missing,
    ),
)


def chosen(cell: GridCell, missing: Mapping[str, str]) -> Iterator[Implementation]:
    """Yield what can run here: the cascades, and decodes without one."""
    of_all = implementations(OPERATION.name)
    for item in (*CASCADES, *(of_all[name] for name in WITHOUT)):
        if not (missing.get(item.library) or item.missing()):
            yield item


TIMED = Timed(
    replace(OPERATION, inputs=inputs_of),
    "performance/cascade.parquet",
    grid,
    chosen,
    built=lambda works: {(work.dtype, work.head_dim) for work in works},
    graph=True,
    by_name=True,
    table=schema.MEASUREMENTS,
)
EXPERIMENT = TIMED.experiment("Decode of requests that share a prefix", "cascade")
