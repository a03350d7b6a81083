"""The implementations that ours are held against: FlashInfer, three ways, and torch SDPA.

A peer's plan, allocation and page gathering happen in `prepare`, outside every timed part; its
step only launches kernels, so it can be captured in a CUDA graph as ours can.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import util

FLASHINFER_WORKSPACE_BYTES = 2**29
# Where in a source an error arose, which says more of this machine than of the error.
_PLACE = re.compile(r"^.*? at /\S+?:\d+: ")
_PATH = re.compile(r"(?<![\w.])(?:/[\w.+-]+)+/(?=[\w.+-])")


class Refused(Exception):
    """A peer that says it does not support a workload; the text is its reason."""


@dataclass(frozen=True)
class Peer:
    """Another implementation of paged decode attention."""

    name: str
    backend: str
    tensor_cores: str
    idea: str
    available: Callable[[], str | None]
    prepare: Callable[..., "Step"]


@dataclass(frozen=True)
class Step:
    """One planned decode step: `run` launches it and writes `out`."""

    run: Callable[[], object]
    out: object
    version: str


def flashinfer_missing() -> str | None:
    """Return why FlashInfer cannot run here, or None."""
    return _missing("flashinfer", "flashinfer-python") or _no_gpu()


def sdpa_missing() -> str | None:
    """Return why torch SDPA cannot run here, or None."""
    return _missing("torch", "torch")


def build_flashinfer(
    pairs: Iterable[tuple[str, int]],
    *,
    decode: bool = True,
    backends: tuple[str, ...] = ("fa2", "fa3"),
) -> None:
    """Compile FlashInfer's modules for (dtype, head_dim) pairs, all in one parallel build.

    Those of prefill serve decode on tensor cores too; decode: also those of its CUDA cores. The
    first build of a module takes 20 to 100 seconds; later calls find it in FlashInfer's cache.
    """
    import torch
    from flashinfer.decode import gen_batch_decode_module
    from flashinfer.jit import gen_batch_prefill_module
    from flashinfer.jit.core import build_jit_specs

    hopper = torch.cuda.get_device_capability()[0] == 9
    prefills = [name for name in backends if hopper or name != "fa3"]
    specs = []
    for dtype, head_dim in pairs:
        element = _torch_dtype(dtype)
        # Position encoding 0 is none; no sliding window, no soft cap, no fp16 scores.
        shape = (element, element, element, torch.int32, head_dim, head_dim, 0, False, False)
        if decode:
            specs.append(gen_batch_decode_module(*shape))
        specs += [gen_batch_prefill_module(name, *shape, False) for name in prefills]
    build_jit_specs(specs, verbose=False)


def _prepare_flashinfer(q, cache, *, scale: float, tensor_cores: bool, backend: str) -> Step:
    """Plan FlashInfer's paged decode and return its step.

    Shapes: q [B, Hq, D]; cache.k and cache.v [pages, page_size, Hkv, D], layout NHD
    Raises: Refused with FlashInfer's own words.
    """
    import flashinfer
    import torch

    indptr, indices, last_page_len = page_lists(cache)
    workspace = torch.empty(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    out = torch.full_like(q, float("nan"))
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=tensor_cores, backend=backend
    )

    def run() -> object:
        return wrapper.run(q, (cache.k, cache.v), out=out)

    try:
        wrapper.plan(
            indptr,
            indices,
            last_page_len,
            q.shape[1],
            cache.k.shape[2],
            q.shape[2],
            cache.k.shape[1],
            q_data_type=q.dtype,
            kv_data_type=q.dtype,
            sm_scale=scale,
        )
        run()
        torch.cuda.synchronize()
    except Exception as error:  # its errors come through an FFI with classes of their own
        raise Refused(one_line(error)) from error
    return Step(run, out, f"FlashInfer {flashinfer.__version__}")


def page_lists(cache):
    """Return the page table as FlashInfer takes it: indptr, indices, last_page_len.

    Shapes: indptr [B + 1] int32; indices [pages in use] int32; last_page_len [B] int32
    Raises: Refused if a request holds no key, for which FlashInfer has no last page.
    """
    import torch

    page_size = cache.page_size
    lengths = cache.kv_len.to(torch.int64)
    if not bool((lengths > 0).all()):
        raise Refused("a request without keys has no last page")
    pages = (lengths + page_size - 1) // page_size
    indptr = torch.zeros(len(pages) + 1, dtype=torch.int32, device=pages.device)
    indptr[1:] = torch.cumsum(pages, 0)
    used = torch.arange(cache.page_table.shape[1], device=pages.device) < pages[:, None]
    last_page_len = (lengths - (pages - 1) * page_size).to(torch.int32)
    return indptr, cache.page_table[used].to(torch.int32), last_page_len


def _prepare_sdpa(q, cache, *, scale: float) -> Step:
    """Gather the pages into contiguous K and V and return torch's attention on them.

    Raises: Refused if the requests hold different numbers of keys, or torch does not take them.
    """
    import torch

    lengths = {int(length) for length in cache.kv_len}
    if len(lengths) != 1 or 0 in lengths:
        raise Refused("kv_len differs between requests or is 0, and SDPA takes one dense tensor")
    (length,) = lengths
    k, v = (_gather(pool, cache.page_table, length) for pool in (cache.k, cache.v))
    out = torch.full_like(q, float("nan"))
    query = q.unsqueeze(2)
    grouped = q.shape[1] != k.shape[1]

    def run() -> object:
        # SDPA has no out argument; the copy of one token a request is small beside K and V.
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, k, v, scale=scale, enable_gqa=grouped
        )
        return out.copy_(attended.squeeze(2))

    try:
        run()
    except RuntimeError as error:
        raise Refused(one_line(error)) from error
    return Step(run, out, f"torch {torch.__version__}")


def _gather(pool, page_table, length: int):
    """Return contiguous keys or values [B, Hkv, length, D] from a pool of pages."""
    page_size = pool.shape[1]
    pages = page_table[:, : (length + page_size - 1) // page_size].long()
    dense = pool[pages].flatten(1, 2)[:, :length]
    return dense.transpose(1, 2).contiguous()


def _flashinfer_way(tensor_cores: bool, backend: str) -> Callable[..., Step]:
    def prepare(q, cache, *, scale: float) -> Step:
        return _prepare_flashinfer(
            q, cache, scale=scale, tensor_cores=tensor_cores, backend=backend
        )

    return prepare


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "flashinfer_cuda_cores",
            "flashinfer",
            "off",
            "use_tensor_cores=False",
            flashinfer_missing,
            _flashinfer_way(False, "auto"),
        ),
        Peer(
            "flashinfer_fa2",
            "flashinfer",
            "on",
            'use_tensor_cores=True, backend="fa2"',
            flashinfer_missing,
            _flashinfer_way(True, "fa2"),
        ),
        Peer(
            "flashinfer_auto",
            "flashinfer",
            "on",
            'use_tensor_cores=True, backend="auto", which is fa3 on sm_90',
            flashinfer_missing,
            _flashinfer_way(True, "auto"),
        ),
        Peer(
            "torch_sdpa",
            "torch",
            "on",
            "scaled_dot_product_attention on gathered, contiguous K and V",
            sdpa_missing,
            _prepare_sdpa,
        ),
    )
}


def one_line(error: BaseException) -> str:
    """Return the last line of an error that says something, without paths, in 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # FlashInfer closes with its own message; a C++ stack may stand above it.
    telling = [line for line in lines if "nsupported" in line or "rror" in line]
    line = (telling or lines or [type(error).__name__])[-1]
    return _PATH.sub("", _PLACE.sub("", line))[-200:]


def _missing(module: str, package: str) -> str | None:
    if util.find_spec(module) is None:
        return f"{package} is not installed"
    return None


def _no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "there is no CUDA GPU"


def _torch_dtype(dtype: str):
    import torch

    return {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
