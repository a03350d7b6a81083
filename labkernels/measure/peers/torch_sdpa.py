"""torch's scaled_dot_product_attention, with each of its backends."""

from collections.abc import Callable

from labkernels.kernels.backward.inputs import BackwardInputs
from labkernels.kernels.call import Attention, Gradients, Step
from labkernels.kernels.decode.inputs import DecodeInputs
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.measure.peers.dense import as_prefill, dense, dense_batch, tokens
from labkernels.measure.peers.peer import PEER_POLICY, Peer, not_installed, refusals


def missing() -> str | None:
    """Return the reason why torch SDPA cannot run here, or None."""
    return not_installed("torch", "torch")


def attention(backend: str, *tensors, **how):
    """Return torch's attention by the named backend, or by torch's choice if the name is empty.

    Shapes: as for torch's scaled_dot_product_attention.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    function = torch.nn.functional.scaled_dot_product_attention
    if not backend:
        return function(*tensors, **how)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        return function(*tensors, **how)


def _decode(inputs: DecodeInputs) -> Step:
    """Gather the pages into contiguous K and V, and return a step of torch's attention on them.

    Raises: Refused if the requests hold different numbers of keys, or torch does not support them.
    """
    import torch

    q, kv = inputs.q, as_prefill(inputs).kv
    k, v = (dense(x, len(q)).contiguous() for x in (kv.k, kv.v))
    out = torch.full_like(q, float("nan"))
    how = {"scale": inputs.scale, "enable_gqa": q.shape[1] != k.shape[1]}

    def run() -> object:
        # SDPA has no out argument; copying one token per request is cheap compared with K and V
        return out.copy_(attention("", q.unsqueeze(2), k, v, **how).squeeze(2))

    with refusals(RuntimeError):
        run()
    return Step(run, lambda: Attention(out), version=version())


def _prefill(backend: str) -> Callable[[PrefillInputs], Step]:
    """Return a function that prepares one backend on requests of one length, as a dense batch."""

    def prepare(inputs: PrefillInputs) -> Step:
        batch, newest = dense_batch(inputs.workload), []
        tensors = [dense(x, batch) for x in (inputs.q, inputs.kv.k, inputs.kv.v)]
        how = {"is_causal": inputs.variant.causal, "scale": inputs.scale}

        def run() -> None:
            newest[:] = [attention(backend, *tensors, **how)]

        with refusals(RuntimeError):
            run()
        return Step(run, lambda: Attention(tokens(newest[0])), version=version())

    return prepare


def _backward(backend: str) -> Callable[[BackwardInputs], Step]:
    """Return a function that prepares one backend's gradients on requests of one length.

    Preparing also runs the forward pass.
    """

    def prepare(inputs: BackwardInputs) -> Step:
        import torch

        forward, newest = inputs.forward, []
        batch = dense_batch(forward.workload)
        tensors = (forward.q, forward.kv.k, forward.kv.v)
        leaves = [dense(x, batch).detach().requires_grad_() for x in tensors]
        dout = dense(inputs.dout, batch)

        def run() -> None:
            newest[:] = torch.autograd.grad(out, leaves, dout, retain_graph=True)

        with refusals(RuntimeError):
            how = {"is_causal": inputs.variant.causal, "scale": inputs.scale}
            out = attention(backend, *leaves, **how)
            run()
        return Step(
            run,
            lambda: Gradients(*map(tokens, newest)),
            version=version(),
            forward=Attention(tokens(out.detach())),
        )

    return prepare


def version() -> str:
    """Return torch's name and version."""
    import torch

    return f"torch {torch.__version__}"


def _of_backend(name: str, backend: str) -> Peer:
    steps = {"prefill": _prefill(backend), "backward": _backward(backend)}
    idea = f"scaled_dot_product_attention and its gradients, {backend}"
    return Peer(name, "torch", idea, PEER_POLICY, steps, missing)


PEERS = (
    Peer(
        "torch_sdpa",
        "torch",
        "scaled_dot_product_attention on gathered, contiguous K and V",
        PEER_POLICY,
        {"decode": _decode},
        missing,
    ),
    _of_backend("torch_fa2", "FLASH_ATTENTION"),
    _of_backend("torch_cudnn", "CUDNN_ATTENTION"),
)
