"""`labkernels explain`: why the bits of a request change between two batches of a library."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from labkernels.cli.options import add_heads
from labkernels.cli.probe import add_switches, switches_of

if TYPE_CHECKING:
    from labkernels.planners import Batch, Cut

HELP = "how a library cuts two batches, and which requests change their bits"
DESCRIPTION = """\
Say how a library cuts the keys of two batches into tiles and splits, which requests are cut
otherwise in the second one, and how many of their heads then change bits for random inputs. The
rules are read from the libraries' sources; nothing runs, and no GPU is needed. A batch is
REQUESTSxKEYS, or the keys of each request; request i of the one is request i of the other.
Of two files, as for `labkernels audit`, it says which requests have other bits, which of their
heads, and whether the cuts predicted these; requests belong together by their queries.

libraries: flashinfer:cuda_cores, flashinfer:fa2, flashinfer:fa3, flashinfer:mla_fa2,
  flashinfer:mla_fa3, flash_attn_2, flash_attn_3, flash_attn_4, flash_mla, torch:sdpa,
  torch:flash, torch:efficient, torch:cudnn, torch:math, vllm:flashinfer, vllm:flash_attn,
  sglang:flashinfer, sglang:flash_attn, labkernels

examples:
  labkernels explain flashinfer:fa2 1x8192 57x8192
  labkernels explain flashinfer:fa2 1x8192 57x8192 --with fixed_split_size=64
  labkernels explain torch:flash 8192 8192,8192 --heads 32/32 --gpu a100
  labkernels explain vllm:flash_attn 1x4096 64x4096 --with batch_invariant=true
  labkernels explain flash_attn_3 4096 4096,512,512 --queries 512
  labkernels explain labkernels 1x8192 57x8192 --with kernel=decode_mma
  labkernels explain flashinfer:fa2 alone.pt batch.pt

exit codes: 0 no request is cut otherwise, or none of the files' has other bits; 1 at least one;
2 the rule is not known, or the request was wrong, as one line says.
"""
TOLD = 3  # requests that are printed, of those that change and of the others
RANDOM_KEYS_MAX = 2**15  # keys whose heads are predicted; more would take minutes


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the library, its switches, and the two batches."""
    sub.add_argument("library", help="one of the names above")
    sub.add_argument("first", help="the first batch: 57x8192, or 8192,512,512; or a file")
    sub.add_argument("second", help="the second batch, or a file")
    add_heads(sub, (32, 8), "query heads / KV heads (default 32/8)")
    sub.add_argument("--head-dim", type=int, default=128, help="channels of a head (default 128)")
    sub.add_argument("--queries", type=int, default=1, help="query tokens of each (default 1)")
    sub.add_argument("--causal", action="store_true", help="with a causal mask")
    sub.add_argument("--page-size", type=int, default=16, help="keys per page; 0 for none")
    sub.add_argument("--dtype", default="bf16", help="fp16 or bf16 (default)")
    sub.add_argument("--gpu", default="h200", help="whose SMs are filled (default h200)")
    add_switches(sub, "a switch of the library")


def run(options: argparse.Namespace) -> int:
    """Print the cut of each request in both batches, and what it does to the bits."""
    from labkernels import hardware
    from labkernels.planners.named import planner
    from labkernels.probing import our_cuts

    ours = options.library == our_cuts.NAME
    plan = our_cuts.labkernels if ours else planner(options.library)
    plan = partial(plan, gpu=hardware.gpu(options.gpu), **switches_of(options))
    files = [Path(text).exists() for text in (options.first, options.second)]
    if any(files) and not all(files):
        name = (options.first, options.second)[files.index(False)]
        raise ValueError(f"{name!r} is no file, allowed: two files, or two batches")
    try:
        return _files(options, plan) if all(files) else _shapes(options, plan)
    except TypeError as error:  # a switch that the library lacks
        raise ValueError(f"{options.library}: {error}") from None


def _files(options: argparse.Namespace, plan: Callable[[Batch], Cut]) -> int:
    """Explain the bits that two dumps have."""
    from labkernels.audit.comparison import EQUAL, ROUNDING
    from labkernels.probing.parted import parted

    found, requests = parted(Path(options.first), Path(options.second), plan)
    if found.answer not in (EQUAL, ROUNDING):
        print(found.summary())
    other = [request for request in requests if request.differs.any()]
    for request in other[:TOLD] + [r for r in requests if not r.differs.any()][:TOLD]:
        print(request)
    right = sum(int((r.differs == r.predicted).sum()) for r in requests)
    heads = sum(len(r.differs) for r in requests)
    print(
        f"{len(other)} of {len(requests)} requests that both have changed bits; the cuts of"
        f" {options.library} on an {options.gpu} are right for {right:,} of {heads:,} heads"
    )
    return int(bool(other))


def _shapes(options: argparse.Namespace, plan: Callable[[Batch], Cut]) -> int:
    """Explain what two batches of these lengths would do."""
    from labkernels.planners import changed
    from labkernels.planners.cut import because

    batches = [_batch(name, getattr(options, name), options) for name in ("first", "second")]
    cuts = [plan(batch) for batch in batches]
    parts, sizes = changed(*cuts), (batches[0].size, batches[1].size)
    print(f"{options.library} on an {options.gpu}, {options.heads[0]}/{options.heads[1]} heads")
    for request in _told(parts, batches):
        keys, label = batches[0].kv_lens[request], cuts[0].label(request)
        if request not in parts:
            print(f"request {request}: {keys:,} keys, {label} in both batches: equal bits")
            continue
        why = because(keys, cuts, (request, request), sizes)
        print(f"request {request} changes because {why}; {_heads(cuts, request, batches)}")
    print(f"{len(parts)} of {min(sizes)} requests that are in both batches are cut otherwise")
    return int(bool(parts))


def _batch(name: str, text: str, options: argparse.Namespace) -> Batch:
    from labkernels.planners import Batch

    try:
        requests, cross, keys = text.partition("x")
        lengths = (int(keys),) * int(requests) if cross else tuple(map(int, text.split(",")))
        if min(lengths) < 1:
            raise ValueError
    except ValueError:
        raise ValueError(f"{name} = {text!r}, allowed: 57x8192, or 8192,512,512") from None
    return Batch(
        lengths,
        *options.heads,
        options.head_dim,
        (options.queries,) * len(lengths),
        page_size=options.page_size or None,
        dtype=options.dtype,
        causal=options.causal,
    )


def _told(parts: tuple[int, ...], batches: list[Batch]) -> list[int]:
    """Return the requests to print: the first ones that change and that do not."""
    both = range(min(batch.size for batch in batches))
    same = [i for i in both if i not in parts]
    return sorted([*parts[:TOLD], *same[:TOLD]])


def _heads(cuts: list[Cut], request: int, batches: list[Batch]) -> str:
    """Return how many heads of a request change, for standard normal scores and values."""
    import numpy as np

    from labkernels.planners import NotKnown
    from labkernels.planners.prediction import changed_heads
    from labkernels.units import LOG2_E

    keys, batch = batches[0].kv_lens[request], batches[0]
    if batches[1].kv_lens[request] != keys:
        return "other keys, so other bits"
    if keys > RANDOM_KEYS_MAX:
        return f"its bits may change (heads are predicted up to {RANDOM_KEYS_MAX:,} keys)"
    draw = np.random.default_rng(0)
    scores = draw.standard_normal((batch.q_heads, keys)) * LOG2_E
    v = draw.standard_normal((batch.kv_heads, keys, batch.head_dim)).repeat(batch.group, axis=0)
    try:
        parted = changed_heads(scores, v, *cuts, dtype=batch.dtype, requests=(request, request))
    except NotKnown as why:
        return f"its bits may change ({why})"
    return f"of {batch.q_heads} heads with random inputs {int(parted.sum())} change bits"
