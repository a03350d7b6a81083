"""Triton's published tutorial kernel, from a file that is not part of the lab."""

from pathlib import Path

from labkernels.measure.peers import triton_tutorial as peer
from labkernels.probing.targets.target import Function, Target, only
from labkernels.variant import AttentionVariant


def target(path: Path | None) -> Target:
    """Return the tutorial's attention as a target; it takes fp16 and one KV head per query head."""

    def make(variant: AttentionVariant) -> Function:
        causal = only(variant, "causal").causal
        attention = peer.load(path).attention

        def run(q, k, v):
            group = q.shape[1] // k.shape[1]
            k, v = (x.repeat_interleave(group, dim=1).contiguous() for x in (k, v))
            return attention(q.contiguous(), k, v, causal, q.shape[-1] ** -0.5, False)

        return run

    def missing(device: str) -> str | None:
        return "it needs a GPU" if device == "cpu" else peer.missing(path)

    return Target(peer.NAME, {"bhsd": make}, _version, missing, gradients=True)


def _version() -> str:
    import triton

    return f"triton {triton.__version__}"
