"""`labkernels explain`: why the bits of a request change between two batches of a library."""

from __future__ import annotations

import argparse
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

libraries: flashinfer:cuda_cores, flashinfer:fa2, flashinfer:fa3, flashinfer:mla_fa2,
  flashinfer:mla_fa3, flash_attn_2, flash_attn_3, flash_attn_4, torch:flash, torch:efficient,
  torch:cudnn, torch:math, vllm:flashinfer, vllm:flash_attn, sglang:flashinfer,
  sglang:flash_attn

examples:
  labkernels explain flashinfer:fa2 1x8192 57x8192
  labkernels explain flashinfer:fa2 1x8192 57x8192 --with fixed_split_size=64
  labkernels explain torch:flash 8192 8192,8192 --heads 32/32 --gpu a100
  labkernels explain vllm:flash_attn 1x4096 64x4096 --with batch_invariant=true
  labkernels explain flash_attn_3 4096 4096,512,512 --queries 512

exit codes: 0 no request is cut otherwise; 1 at least one is; 2 the rule is not known, or the
request was wrong, as one line says.
"""
RANDOM_KEYS_MAX = 2**15  # keys whose heads are predicted; more would take minutes


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the library, its switches, and the two batches."""
    sub.add_argument("library", help="one of the names above")
    sub.add_argument("first", help="the first batch: 57x8192, or 8192,512,512")
    sub.add_argument("second", help="the second batch")
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
    from labkernels.planners import changed
    from labkernels.planners.named import planner

    plan, gpu = planner(options.library), hardware.gpu(options.gpu)
    batches = [_batch(name, getattr(options, name), options) for name in ("first", "second")]
    try:
        cuts = [plan(batch, gpu, **switches_of(options)) for batch in batches]
    except TypeError as error:  # a switch that the library lacks
        raise ValueError(f"{options.library}: {error}") from None
    parts = changed(*cuts)
    print(f"{options.library} on an {gpu.name}, {options.heads[0]}/{options.heads[1]} heads")
    for request in _told(parts, batches):
        keys = batches[0].kv_lens[request], batches[1].kv_lens[request]
        labels = [cut.label(request) for cut in cuts]
        if request not in parts:
            print(f"request {request}: {keys[0]:,} keys, {labels[0]} in both batches: equal bits")
            continue
        print(
            f"request {request}: {keys[0]:,} keys, {labels[0]} in the batch of {batches[0].size},"
        )
        print(f"  {labels[1]} in the batch of {batches[1].size}: {_heads(cuts, request, batches)}")
    both = min(batch.size for batch in batches)
    print(f"{len(parts)} of {both} requests that are in both batches are cut otherwise")
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
    """Return the requests to print: the first ones that change and that do not, three each."""
    both = range(min(batch.size for batch in batches))
    same = [i for i in both if i not in parts]
    return sorted([*parts[:3], *same[:3]])


def _heads(cuts: list[Cut], request: int, batches: list[Batch]) -> str:
    """Return how many heads of a request change, for standard normal scores and values."""
    import numpy as np

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
    parted = changed_heads(scores, v, *cuts, dtype=batch.dtype, requests=(request, request))
    return f"of {batch.q_heads} heads with random inputs {int(parted.sum())} change bits"
