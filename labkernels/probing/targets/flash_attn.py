"""FlashAttention: the CuTe kernels of flash-attn-4, dense and ragged, with gradients."""

from labkernels.measure.peers import flash_attention as peer
from labkernels.probing.targets.target import Function, Target, only
from labkernels.variant import AttentionVariant


def _options(variant: AttentionVariant) -> dict:
    """Return a variant in the words of flash_attn.cute, which counts windows as the lab does."""
    only(variant, "causal", "window_left", "soft_cap")
    window = {} if variant.window_left is None else {"window_size": (variant.window_left, None)}
    return {"causal": variant.causal, "softcap": variant.soft_cap or 0.0} | window


def _dense(variant: AttentionVariant) -> Function:
    options = _options(variant)

    def run(q, k, v, **knobs):
        from flash_attn.cute import flash_attn_func

        return flash_attn_func(q, k, v, return_lse=True, **options, **knobs)

    return run


def _ragged(variant: AttentionVariant) -> Function:
    options = _options(variant)

    def run(q, k, v, cu_q, cu_k, **knobs):
        from flash_attn.cute import flash_attn_varlen_func

        longest = [int((ends[1:] - ends[:-1]).max()) for ends in (cu_q, cu_k)]
        lengths = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
        lengths |= {"max_seqlen_q": longest[0], "max_seqlen_k": longest[1]}
        return flash_attn_varlen_func(q, k, v, return_lse=True, **lengths, **options, **knobs)

    return run


def _version() -> str:
    from importlib import metadata

    return f"{peer.PACKAGE} {metadata.version(peer.PACKAGE)}"


def _missing(device: str) -> str | None:
    return peer.missing() if device != "cpu" else "FlashAttention has no kernels for a CPU"


TARGETS = (
    Target(
        "flash_attn_4",
        {"bshd": _dense, "ragged": _ragged},
        _version,
        _missing,
        gradients=True,
    ),
)
