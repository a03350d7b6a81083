"""FlashAttention-2: the forward pass of the package flash_attn, whose bits are compared."""

from labkernels.measure.peers.peer import Tensors, not_installed

PACKAGE = "flash-attn"


def missing() -> str | None:
    """Return why FlashAttention-2 cannot run here, or None."""
    import torch

    why = not_installed("flash_attn_2_cuda", PACKAGE)
    return why or (None if torch.cuda.is_available() else "there is no CUDA GPU")


def version() -> str:
    """Return the package's name and version."""
    import flash_attn

    return f"{PACKAGE} {flash_attn.__version__}"


def attention(t: Tensors):
    """Return its plain call's output. Shapes: [B, M, Hq, D]."""
    from flash_attn import flash_attn_func

    return flash_attn_func(t.q, t.k, t.v, softmax_scale=t.scale, causal=t.causal)


def packed(qkv, ends, *, longest: int, scale: float):
    """Return the causal attention of samples that lie one after the other.

    Shapes: qkv [total, 3, H, D]; ends [samples + 1], int32; result [total, H, D].
    """
    from flash_attn import flash_attn_varlen_qkvpacked_func

    how = {"softmax_scale": scale, "causal": True}
    return flash_attn_varlen_qkvpacked_func(qkv, ends, longest, **how)


def kvcache(t: Tensors, *, new=None, kv_len=None, num_splits: int = 0):
    """Append k and v to a cache, if there are new ones, and return the attention over the cache.

    t.k, t.v: the cache. num_splits: 0 for its heuristic.
    Shapes: new, two of [B, M, Hkv, D]; kv_len [B], int32, the keys before the append.
    """
    from flash_attn import flash_attn_with_kvcache

    how = {"softmax_scale": t.scale, "causal": t.causal, "num_splits": num_splits}
    if kv_len is not None:
        how["cache_seqlens"] = kv_len
    return flash_attn_with_kvcache(t.q, t.k, t.v, *(new or ()), **how)
