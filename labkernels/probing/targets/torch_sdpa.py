"""torch's scaled_dot_product_attention by each of its backends, on dense tensors [B, H, M, D]."""

from labkernels.measure.peers.torch_sdpa import attention
from labkernels.probing.targets import Target, installed, maker
from labkernels.variant import AttentionVariant

BACKENDS = {
    "torch:sdpa": "",  # torch's own choice
    "torch:flash": "FLASH_ATTENTION",
    "torch:cudnn": "CUDNN_ATTENTION",
    "torch:efficient": "EFFICIENT_ATTENTION",
    "torch:math": "MATH",
}


def _run(variant: AttentionVariant, q, k, v, *, backend: str):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    return attention(backend, q, k, v, is_causal=variant.causal)


def _target(name: str, backend: str) -> Target:
    def missing(device: str) -> str | None:
        on_cpu = backend not in ("CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
        return None if on_cpu or device != "cpu" else "torch has this backend on a GPU alone"

    make = {"bhsd": maker(_run, "causal", backend=backend)}
    return Target(name, make, installed("torch", "torch"), missing)


TARGETS = tuple(_target(*item) for item in BACKENDS.items())
