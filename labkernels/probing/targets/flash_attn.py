"""FlashAttention: the CuTe kernels of flash-attn-4, dense and ragged, with gradients."""

from labkernels.measure.peers import flash_attention as peer
from labkernels.probing.targets import Target, installed, maker, on_gpu
from labkernels.variant import AttentionVariant


def _options(variant: AttentionVariant) -> dict:
    """Return a variant in the words of flash_attn.cute, which counts windows as the lab does."""
    window = {} if variant.window_left is None else {"window_size": (variant.window_left, None)}
    how = {"causal": variant.causal, "softcap": variant.soft_cap or 0.0, "return_lse": True}
    return how | window


def _dense(variant: AttentionVariant, q, k, v, **knobs):
    from flash_attn.cute import flash_attn_func

    return flash_attn_func(q, k, v, **_options(variant), **knobs)


def _ragged(variant: AttentionVariant, q, k, v, cu_q, cu_k, **knobs):
    from flash_attn.cute import flash_attn_varlen_func

    lengths = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    for name, ends in (("q", cu_q), ("k", cu_k)):
        lengths[f"max_seqlen_{name}"] = int((ends[1:] - ends[:-1]).max())
    return flash_attn_varlen_func(q, k, v, **lengths, **_options(variant), **knobs)


_FIELDS = ("causal", "window_left", "soft_cap")
_MAKE = {"bshd": maker(_dense, *_FIELDS), "ragged": maker(_ragged, *_FIELDS)}
_VERSION = installed(peer.PACKAGE, peer.PACKAGE)
TARGETS = (Target("flash_attn_4", _MAKE, _VERSION, on_gpu("FlashAttention", peer.missing)),)
