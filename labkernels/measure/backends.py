"""Backends of torch and FlashInfer on plain tensors, to be judged; `peers` has those we time."""

from collections.abc import Callable
from dataclasses import dataclass

from labkernels.measure import peers

SDPA = {
    "torch_flash": "FLASH_ATTENTION",
    "torch_cudnn": "CUDNN_ATTENTION",
    "torch_efficient": "EFFICIENT_ATTENTION",
    "torch_math": "MATH",
}
PAGE_SIZE = 16


@dataclass(frozen=True, eq=False)
class Tensors:
    """Requests of one length. Shapes: q [B, M, Hq, D]; k, v [B, L, Hkv, D]; causal needs M = L."""

    q: object
    k: object
    v: object
    scale: float
    causal: bool

    @property
    def is_decode(self) -> bool:
        """Whether each request has one query token."""
        return self.q.shape[1] == 1


@dataclass(frozen=True)
class Backend:
    """One implementation; run(tensors) gives [B, M, Hq, D] and raises what it will not do."""

    name: str
    backend: str
    tensor_cores: str
    run: Callable[[Tensors], object]


def backends() -> dict[str, Backend]:
    """Every backend by name, torch first."""
    torch_ways = [
        Backend(name, "torch", "off" if word == "MATH" else "on", _sdpa(word))
        for name, word in SDPA.items()
    ]
    decoders = [
        Backend(peer.name, peer.backend, peer.tensor_cores, _paged(peer))
        for peer in peers.PEERS.values()
        if peer.backend == "flashinfer"
    ]
    whole = Backend("flashinfer_fa2_unsplit", "flashinfer", "on", _paged_unsplit)
    prefills = [
        Backend(f"flashinfer_prefill_{name}", "flashinfer", "on", _ragged(backend, split=split))
        for name, backend, split in (
            ("fa2", "fa2", True),
            ("fa2_unsplit", "fa2", False),
            ("fa3", "fa3", True),
        )
    ]
    ours = (*torch_ways, *decoders, whole, *prefills)
    return {item.name: item for item in ours}


def _sdpa(word: str) -> Callable[[Tensors], object]:
    """One backend of scaled_dot_product_attention, with K and V repeated for the group."""

    def run(t: Tensors):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        group = t.q.shape[2] // t.k.shape[2]
        q = t.q.transpose(1, 2)
        k, v = (x.repeat_interleave(group, dim=2).transpose(1, 2) for x in (t.k, t.v))
        with sdpa_kernel(getattr(SDPBackend, word)):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, scale=t.scale, is_causal=t.causal
            )
        return out.transpose(1, 2)

    return run


def _pages(t: Tensors):
    """K and V in pages, in order, the last one of each request padded with zeros."""
    import torch

    from labkernels.kernels.paged_kv import PagedKV

    batch, length = t.k.shape[:2]
    count = -(-length // PAGE_SIZE)
    room = (0, 0, 0, 0, 0, count * PAGE_SIZE - length)
    k, v = (
        torch.nn.functional.pad(x, room).reshape(-1, PAGE_SIZE, *x.shape[2:]) for x in (t.k, t.v)
    )
    numbers = {"dtype": torch.int32, "device": k.device}
    table = torch.arange(batch * count, **numbers).view(batch, count)
    return PagedKV(k, v, table, torch.full((batch,), length, **numbers))


def _paged(peer: peers.Peer) -> Callable[[Tensors], object]:
    def run(t: Tensors):
        _require_decode(t)
        step = peer.prepare(t.q[:, 0], _pages(t), scale=t.scale)
        step.run()
        return step.out[:, None]

    return run


def _paged_unsplit(t: Tensors):
    """FlashInfer's decode on tensor cores, a request's keys never split."""
    import flashinfer

    _require_decode(t)
    cache = _pages(t)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(t), "NHD", use_tensor_cores=True, backend="fa2"
    )
    wrapper.plan(
        *peers.page_lists(cache),
        t.q.shape[2],
        t.k.shape[2],
        t.q.shape[3],
        PAGE_SIZE,
        q_data_type=t.q.dtype,
        kv_data_type=t.q.dtype,
        sm_scale=t.scale,
        disable_split_kv=True,
    )
    return wrapper.run(t.q[:, 0].contiguous(), (cache.k, cache.v))[:, None]


def _ragged(backend: str, *, split: bool) -> Callable[[Tensors], object]:
    """FlashInfer's prefill over ragged tensors; fa3 never splits and has no word for it."""

    def run(t: Tensors):
        import flashinfer
        import torch

        if t.is_decode:
            raise peers.Refused("decodes go through the paged wrapper")
        batch, n_q, q_heads, head_dim = t.q.shape
        length, kv_heads = t.k.shape[1:3]
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
            _workspace(t), "NHD", backend=backend
        )
        ends = torch.arange(batch + 1, dtype=torch.int32, device=t.q.device)
        wrapper.plan(
            ends * n_q,
            ends * length,
            q_heads,
            kv_heads,
            head_dim,
            causal=t.causal,
            sm_scale=t.scale,
            q_data_type=t.q.dtype,
            **({} if split else {"disable_split_kv": True}),
        )
        out = wrapper.run(*(x.flatten(0, 1) for x in (t.q, t.k, t.v)))
        return out.view(batch, n_q, q_heads, head_dim)

    return run


def _workspace(t: Tensors):
    import torch

    return torch.empty(peers.FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=t.q.device)


def _require_decode(t: Tensors) -> None:
    if not t.is_decode:
        raise peers.Refused("it decodes: one query token a request")
