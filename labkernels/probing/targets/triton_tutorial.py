"""Triton's published tutorial kernel, from a file that is not part of the lab."""

from functools import cache
from pathlib import Path

from labkernels.measure.peers import triton_tutorial as peer
from labkernels.probing.targets import Target, installed, maker
from labkernels.variant import AttentionVariant


def target(path: Path | None) -> Target:
    """Return the tutorial's attention as a target; it takes fp16 and one KV head per query head."""
    load = cache(peer.load)

    def run(variant: AttentionVariant, q, k, v):
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, dim=1).contiguous() for x in (k, v))
        attention = load(path).attention
        return attention(q.contiguous(), k, v, variant.causal, q.shape[-1] ** -0.5, False)

    def missing(device: str) -> str | None:
        return "it needs a GPU" if device == "cpu" else peer.missing(path)

    make = {"bhsd": maker(run, "causal")}
    return Target(peer.NAME, make, installed("triton", "triton"), missing)
