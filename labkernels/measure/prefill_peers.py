"""The implementations that our prefill is held against: torch SDPA, two ways, and FlashInfer.

A peer's plan and allocation happen in `prepare`, outside every timed part, as in `peers`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from labkernels.measure import peers
from labkernels.measure.peers import Peer, Refused, one_line
from labkernels.workload import Prefill

# Each head_dim costs two more builds of FlashInfer, minutes that the targets do not ask for.
# Built for these alone: each module takes a minute of compiling, and fa2 is no target of ours.
FLASHINFER_HEAD_DIMS = {"fa2": (128,), "fa3": (64, 128, 256)}


@dataclass(frozen=True)
class Step:
    """One planned prefill: `run` launches it, `out` gives its newest output [total_q, Hq, Dv]."""

    run: Callable[[], object]
    out: Callable[[], object]
    version: str


def build_flashinfer(dtype: str) -> str | None:
    """Compile FlashInfer's modules; return the reason if it cannot run here."""
    reason = peers.flashinfer_missing()
    if reason is None:
        try:
            for backend, head_dims in FLASHINFER_HEAD_DIMS.items():
                pairs = [(dtype, head_dim) for head_dim in head_dims]
                peers.build_flashinfer(pairs, decode=False, backends=(backend,))
        except Exception as error:  # a build can fail in as many ways as there are tools
            reason = f"FlashInfer did not build: {one_line(error)}"
    return reason


def _sdpa(backend: str) -> Callable[[object], Step]:
    """One backend of torch's attention, on requests of one length, seen as a dense batch."""

    def prepare(case) -> Step:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        work = case.workload
        batch = dense_batch(work)
        chosen = getattr(SDPBackend, backend)
        q, k, v = (dense(x, batch) for x in (case.q, case.kv.k, case.kv.v))
        newest = []

        def run() -> None:
            with sdpa_kernel(chosen):
                attended = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=work.causal, scale=case.scale
                )
            newest[:] = [attended]

        def out() -> torch.Tensor:
            return newest[0].transpose(1, 2).flatten(0, 1)

        try:
            run()
        except RuntimeError as error:
            raise Refused(one_line(error)) from error
        return Step(run, out, f"torch {torch.__version__}")

    return prepare


def dense_batch(work: Prefill) -> int:
    """The requests of a workload that SDPA takes as one dense tensor, else Refused."""
    if work.page_size is not None:
        raise Refused("SDPA takes dense tensors, not pages")
    if len(set(work.q_lens)) != 1 or work.q_lens != work.kv_lens:
        raise Refused("lengths differ, and SDPA takes one dense tensor")
    if work.group != 1:
        raise Refused("SDPA's kernels are timed with one query head a KV head")
    return work.batch


def dense(x, batch: int):
    """[batch x length, heads, dim] seen as [batch, heads, length, dim]."""
    return x.view(batch, len(x) // batch, *x.shape[1:]).transpose(1, 2)


def _flashinfer(backend: str) -> Callable[[object], Step]:
    def prepare(case) -> Step:
        import flashinfer
        import torch

        work = case.workload
        if work.head_dim not in FLASHINFER_HEAD_DIMS[backend]:
            built = ", ".join(map(str, FLASHINFER_HEAD_DIMS[backend]))
            raise Refused(f"built for head_dim {built} alone")
        workspace = torch.empty(
            peers.FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=case.q.device
        )
        out = torch.full_like(case.q, float("nan"))
        heads = (work.q_heads, work.kv_heads, work.head_dim)
        options = {"causal": work.causal, "sm_scale": case.scale, "q_data_type": case.q.dtype}
        try:
            if work.page_size is None:
                wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
                    workspace, "NHD", backend=backend
                )
                wrapper.plan(case.cu_seqlens_q, case.kv.cu_seqlens, *heads, **options)
                tensors = (case.q, case.kv.k, case.kv.v)
            else:
                wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                    workspace, "NHD", backend=backend
                )
                pages = peers.page_lists(case.kv)
                wrapper.plan(case.cu_seqlens_q, *pages, *heads, work.page_size, **options)
                tensors = (case.q, (case.kv.k, case.kv.v))

            def run() -> object:
                return wrapper.run(*tensors, out=out)

            run()
            torch.cuda.synchronize()
        except Exception as error:  # its errors come through an FFI with classes of their own
            raise Refused(one_line(error)) from error
        return Step(run, lambda: out, f"FlashInfer {flashinfer.__version__}")

    return prepare


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "torch_fa2",
            "torch",
            "on",
            "scaled_dot_product_attention, FLASH_ATTENTION",
            peers.sdpa_missing,
            _sdpa("FLASH_ATTENTION"),
        ),
        Peer(
            "torch_cudnn",
            "torch",
            "on",
            "scaled_dot_product_attention, CUDNN_ATTENTION",
            peers.sdpa_missing,
            _sdpa("CUDNN_ATTENTION"),
        ),
        Peer(
            "flashinfer_fa2",
            "flashinfer",
            "on",
            'prefill wrappers, backend="fa2"',
            peers.flashinfer_missing,
            _flashinfer("fa2"),
        ),
        Peer(
            "flashinfer_fa3",
            "flashinfer",
            "on",
            'prefill wrappers, backend="fa3"',
            peers.flashinfer_missing,
            _flashinfer("fa3"),
        ),
    )
}
