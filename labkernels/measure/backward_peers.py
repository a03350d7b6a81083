"""The implementations that our backward pass is held against: torch SDPA's, two ways.

A peer's forward pass happens in `prepare`, outside every timed part.
"""

from collections.abc import Callable
from dataclasses import dataclass

from labkernels.measure import peers
from labkernels.measure.backward_cases import BackwardCase
from labkernels.measure.peers import Peer, Refused, one_line
from labkernels.measure.prefill_peers import dense, dense_batch


@dataclass(frozen=True)
class Step:
    """A backward pass ready to run: `run` launches it, `gradients` gives its newest dq, dk, dv.

    out: what its own forward pass gave, [total_q, Hq, D].
    """

    run: Callable[[], object]
    gradients: Callable[[], list]
    out: object
    version: str


def _sdpa(backend: str) -> Callable[[BackwardCase], Step]:
    """One backend of torch's attention, on requests of one length, seen as a dense batch."""

    def prepare(case: BackwardCase) -> Step:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        batch, forward = dense_batch(case.forward.workload), case.forward
        leaves = [
            dense(x, batch).detach().requires_grad_()
            for x in (forward.q, forward.kv.k, forward.kv.v)
        ]
        dout, newest = dense(case.dout, batch), []

        def run() -> None:
            newest[:] = torch.autograd.grad(out, leaves, dout, retain_graph=True)

        def gradients() -> list[torch.Tensor]:
            return [_tokens(x) for x in newest]

        try:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                out = torch.nn.functional.scaled_dot_product_attention(
                    *leaves, is_causal=case.workload.causal, scale=forward.scale
                )
            run()
        except RuntimeError as error:
            raise Refused(one_line(error)) from error
        return Step(run, gradients, _tokens(out.detach()), f"torch {torch.__version__}")

    return prepare


def _tokens(x):
    """[batch, heads, length, dim] as [batch x length, heads, dim]."""
    return x.transpose(1, 2).flatten(0, 1)


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "torch_fa2",
            "torch",
            "on",
            "scaled_dot_product_attention's gradients, FLASH_ATTENTION",
            peers.sdpa_missing,
            _sdpa("FLASH_ATTENTION"),
        ),
        Peer(
            "torch_cudnn",
            "torch",
            "on",
            "scaled_dot_product_attention's gradients, CUDNN_ATTENTION",
            peers.sdpa_missing,
            _sdpa("CUDNN_ATTENTION"),
        ),
    )
}
