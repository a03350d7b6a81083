"""torch's scaled_dot_product_attention by each of its backends, on dense tensors [B, H, M, D]."""

from labkernels.measure.peers.torch_sdpa import attention
from labkernels.probing.targets.target import Function, Target, only
from labkernels.variant import AttentionVariant

BACKENDS = {
    "torch:sdpa": "",  # torch's own choice
    "torch:flash": "FLASH_ATTENTION",
    "torch:cudnn": "CUDNN_ATTENTION",
    "torch:efficient": "EFFICIENT_ATTENTION",
    "torch:math": "MATH",
}


def _make(backend: str):
    def make(variant: AttentionVariant) -> Function:
        causal = only(variant, "causal").causal

        def run(q, k, v):
            group = q.shape[1] // k.shape[1]
            k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
            return attention(backend, q, k, v, is_causal=causal)

        return run

    return make


def _version() -> str:
    import torch

    return f"torch {torch.__version__}"


def _missing(backend: str):
    return lambda device: (
        "torch has this backend on a GPU alone"
        if device == "cpu" and backend in ("CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
        else None
    )


TARGETS = tuple(
    Target(name, {"bhsd": _make(backend)}, _version, _missing(backend), gradients=True)
    for name, backend in BACKENDS.items()
)
