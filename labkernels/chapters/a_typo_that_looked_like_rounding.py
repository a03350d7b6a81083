"""Tests of an MLA decode that tell wrong data from rounding without a tolerance."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import torch

from labkernels import ops
from labkernels.kernels.mla.inputs import MlaInputs
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.numerics import metrics
from labkernels.records.store import Row

TOLERANCE = 1e-3  # absolute and relative tolerance of the report's test
FORMS = {"beyond 1e-3": "{:.1%}", "max abs": "{:.3g}", "cosine": "{:.3f}", "rel L2": "{:.2g}"}


def signature(out, truth) -> dict[str, float]:
    """Measure an output's distance from the truth by four numbers that need no facts of the kernel.

    Shapes: out, truth alike, NumPy. NaN anywhere makes all four NaN or, of the share, a failure.
    """
    out, truth = np.asarray(out, np.float64), np.asarray(truth, np.float64)
    error = out - truth
    norms = np.linalg.norm(out) * np.linalg.norm(truth)
    return {
        "beyond 1e-3": float(np.mean(~(np.abs(error) <= TOLERANCE * (1 + np.abs(truth))))),
        "max abs": float(np.abs(error).max()),
        "cosine": float((out * truth).sum() / norms),
        "rel L2": float(np.linalg.norm(error) / np.linalg.norm(truth)),
    }


def duplicated_index(keys: int) -> np.ndarray:
    """Return the key that each slot holds if a lane's part of the index, slot % 4, is added twice.

    Shapes: [keys], a multiple of 16. A key of `keys` or more lies behind the end.
    """
    slot = np.arange(keys)
    return slot // 16 * 16 + slot % 16 // 4 * 4 + slot % 4 * 2


def read_instead(case: MlaInputs, slots: np.ndarray) -> np.ndarray:
    """Return attention in float64 over the keys that the slots name, for requests of equal length.

    A slot behind a request's end holds zeros, as in the kernel, so that its score is 0.
    Shapes: slots [keys]; returns [total_q, H, 512], one query token per request.
    """
    out = np.empty(tuple(case.q_nope.shape))
    for request, q in enumerate(case.q.double().numpy()):
        k, v = (part[:, 0].double().numpy() for part in case.cache.of_request(request))
        zeros = ((0, slots.max(initial=0) + 1), (0, 0))
        k, v = (np.pad(part, zeros)[slots] for part in (k, v))
        scores = case.scale * q @ k.T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[request] = weights / weights.sum(axis=1, keepdims=True) @ v
    return out


def counting_case(case: MlaInputs) -> MlaInputs:
    """Return the case with queries of zero and key j of a request one-hot in channel j.

    All weights are then equal, and out[request, head, j] is the number of times that key j was
    read, divided by the number of keys. The requests have up to 512 keys.
    """
    cache = case.cache
    ckv = torch.zeros_like(cache.ckv)
    for page, slot in _places(cache):
        ckv[page, slot, torch.arange(len(slot))] = 1
    return dataclasses.replace(
        case,
        q_nope=torch.zeros_like(case.q_nope),
        q_pe=torch.zeros_like(case.q_pe),
        cache=dataclasses.replace(cache, ckv=ckv),
    )


def shuffled_case(case: MlaInputs, *, seed: int) -> MlaInputs:
    """Return the case with each request's latent rows in another order, which changes no output."""
    cache, draw = case.cache, torch.Generator().manual_seed(seed)
    ckv, kpe = cache.ckv.clone(), cache.kpe.clone()
    for place in _places(cache):
        order = torch.randperm(len(place[-1]), generator=draw)
        ckv[place], kpe[place] = cache.ckv[place][order], cache.kpe[place][order]
    return dataclasses.replace(case, cache=dataclasses.replace(cache, ckv=ckv, kpe=kpe))


def decode(case: MlaInputs, **how) -> np.ndarray:
    """Run ops.mla_decode on a case; its output in float64.

    Shapes: [total_q, H, 512]. Raises: ValueError as ops.mla_decode.
    """
    done = ops.mla_decode(
        case.q_nope, case.q_pe, case.cache, case.cu_seqlens_q, scale=case.scale, **how
    )
    return done.out.double().cpu().numpy()


def misread(inputs):
    """Return inputs of a decode or a prefill whose keys and values lie as the typo reads them.

    Slot i of a request holds the key that `duplicated_index` names for it; keys behind the end are
    zeros. A right kernel then computes what a kernel with the typo would.
    """
    paged = hasattr(inputs, "cache")
    cache = inputs.cache if paged else inputs.kv
    k, v = cache.k.clone(), cache.v.clone()
    for place in _places(cache):
        length = len(place[-1])
        slots = torch.from_numpy(duplicated_index(-(-length // 16) * 16)[:length])
        for new, old in ((k, cache.k), (v, cache.v)):
            rows = old[place]
            behind = torch.zeros_like(rows[:1]).expand(int(slots.max()) + 1, *rows.shape[1:])
            new[place] = torch.cat([rows, behind])[slots]
    changed = dataclasses.replace(cache, k=k, v=v)
    return dataclasses.replace(inputs, **{"cache" if paged else "kv": changed})


def _places(cache) -> Iterator[tuple]:
    """Yield the index of each request's rows: of pages and slots, or of a row."""
    if not hasattr(cache, "page_table"):
        ends = cache.cu_seqlens.tolist()
        yield from ((torch.arange(*pair),) for pair in itertools.pairwise(ends))
        return
    for request, length in enumerate(cache.kv_len.tolist()):
        position = torch.arange(length)
        page = cache.page_table[request, position // cache.page_size].long()
        yield page, position % cache.page_size


def bytes_and_flops(row: Row) -> dict[str, int]:
    """Return bytes and FLOPs of a recorded call from its shape; all requests are equally long."""
    workload = MlaDecode(
        (row["kv_len"],) * row["batch"], row["q_heads"], q_len=row["q_len"], dtype=row["dtype"]
    )
    return {"bytes": workload.bytes, "flops": workload.flops}


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """Return the RMS of a difference, over the RMS of b."""
    return float(metrics.rms(a - b, by="all") / metrics.rms(b, by="all"))
