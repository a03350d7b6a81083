"""The implementations that our MLA decode is held against: FlashInfer's, of two generations.

A peer's plan and allocation happen in `prepare`, outside every timed part, as in `peers`.
"""

from collections.abc import Callable

from labkernels.measure import peers
from labkernels.measure.peers import Peer, Refused, Step, one_line


def build_flashinfer(dtype: str) -> str | None:
    """Compile FlashInfer's modules; return the reason if it cannot run here."""
    reason = peers.flashinfer_missing()
    if reason is None:
        try:
            _build(dtype)
        except Exception as error:  # a build can fail in as many ways as there are tools
            reason = f"FlashInfer did not build: {one_line(error)}"
    return reason


def _build(dtype: str) -> None:
    import torch
    from flashinfer.jit import gen_batch_mla_module
    from flashinfer.jit.core import build_jit_specs

    element = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    hopper = torch.cuda.get_device_capability()[0] == 9
    names = ("fa2", "fa3") if hopper else ("fa2",)
    shape = (element, element, element, torch.int32, 512, 64, False)
    build_jit_specs([gen_batch_mla_module(name, *shape) for name in names], verbose=False)


def _flashinfer(backend: str) -> Callable[[object], Step]:
    def prepare(case) -> Step:
        import flashinfer
        import torch

        work, cache, device = case.workload, case.cache, case.q_nope.device
        workspace = torch.empty(peers.FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        out = torch.full_like(case.q_nope, float("nan"))
        try:
            wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, backend=backend)
            ends, pages, _ = peers.page_lists(cache)
            wrapper.plan(
                case.cu_seqlens_q,
                ends,
                pages,
                cache.kv_len,
                work.q_heads,
                work.latent_dim,
                work.rope_dim,
                work.page_size,
                work.causal,
                case.scale,
                case.q_nope.dtype,
                cache.ckv.dtype,
            )

            def run() -> object:
                return wrapper.run(case.q_nope, case.q_pe, cache.ckv, cache.kpe, out=out)

            run()
            torch.cuda.synchronize()
        except Exception as error:  # its errors come through an FFI with classes of their own
            raise Refused(one_line(error)) from error
        return Step(run, out, f"FlashInfer {flashinfer.__version__}")

    return prepare


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            f"flashinfer_{backend}",
            "flashinfer",
            "on",
            f'BatchMLAPagedAttentionWrapper, backend="{backend}"',
            peers.flashinfer_missing,
            _flashinfer(backend),
        )
        for backend in ("fa2", "fa3")
    )
}
