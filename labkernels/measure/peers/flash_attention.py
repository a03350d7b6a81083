"""FlashAttention-4: its CuTe kernels for sm_90, forward and backward, by `flash_attn.cute`."""

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from labkernels.kernels.backward.inputs import BackwardInputs
from labkernels.kernels.call import Attention, Gradients, SinkGradients, Step
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.measure.peers.dense import as_prefill
from labkernels.measure.peers.peer import PEER_POLICY, Peer, Refused, refusals

PACKAGE = "flash-attn-4"


def missing() -> str | None:
    """Return why FlashAttention-4 cannot run here, or None."""
    import torch

    try:
        metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return f"{PACKAGE} is not installed"
    return None if torch.cuda.is_available() else "there is no CUDA GPU"


def _attention(inputs: PrefillInputs, tensors: Sequence, **how):
    """Return the output of its forward pass over ragged q, k and v; the inputs give the shapes."""
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

    work = inputs.workload
    how = {"softmax_scale": inputs.scale, "causal": inputs.variant.causal} | _variant(inputs) | how
    if len({*work.q_lens}) == len({*work.kv_lens}) == 1:
        out, _ = flash_attn_func(*(x.unflatten(0, (work.batch, -1)) for x in tensors), **how)
        return out.flatten(0, 1)
    lengths = {
        "cu_seqlens_q": inputs.cu_seqlens_q,
        "cu_seqlens_k": inputs.kv.cu_seqlens,
        "max_seqlen_q": max(work.q_lens),
        "max_seqlen_k": max(work.kv_lens),
    }
    out, _ = flash_attn_varlen_func(*tensors, **lengths, **how)
    return out


def _variant(inputs: PrefillInputs) -> dict[str, Any]:
    """Return its arguments for a window, a soft cap and sinks, where the inputs have them."""
    variant, how = inputs.variant, dict[str, Any]()
    if "window" in variant.features:  # its causal flag would hide the left end
        right = 0 if variant.causal else variant.window_right
        how |= {"causal": False, "window_size": (variant.window_left, right)}
    if variant.soft_cap is not None:
        how["softcap"] = variant.soft_cap
    if variant.sinks:
        how["learnable_sink"] = inputs.options["sinks"]
    return how


def _tensors(inputs: PrefillInputs) -> tuple:
    if inputs.workload.page_size is not None:
        raise Refused("it is timed on plain tensors, not on pages")
    return inputs.q, inputs.kv.k, inputs.kv.v


def _prefill(inputs: PrefillInputs) -> Step:
    tensors, newest = _tensors(inputs), []

    def run() -> None:
        newest[:] = [_attention(inputs, tensors)]

    with refusals(Exception):  # its compiler raises exceptions of its own classes
        run()
    return Step(run, lambda: Attention(newest[0]), version=version())


def _backward(*, deterministic: bool) -> Callable[[BackwardInputs], Step]:
    """Return a function that prepares its gradients; preparing also runs the forward pass."""

    def prepare(inputs: BackwardInputs) -> Step:
        import torch

        newest = []
        leaves = [x.detach().requires_grad_() for x in _tensors(inputs.forward)]
        how, kind = {"deterministic": deterministic}, Gradients
        if inputs.variant.sinks:
            how["learnable_sink"] = inputs.forward.options["sinks"].detach().requires_grad_()
            kind = SinkGradients
        wanted = [*leaves, *list(how.values())[1:]]

        def run() -> None:
            newest[:] = torch.autograd.grad(out, wanted, inputs.dout, retain_graph=True)

        with refusals(Exception):
            out = _attention(inputs.forward, leaves, **how)
            run()
        return Step(run, lambda: kind(*newest), version=version(), forward=Attention(out.detach()))

    return prepare


def version() -> str:
    """Return the package's name and version."""
    return f"{PACKAGE} {metadata.version(PACKAGE)}"


PEERS = (
    Peer(
        "flash_attention_4",
        PACKAGE,
        "flash_attn.cute's kernels for sm_90",
        PEER_POLICY,
        {
            "prefill": _prefill,
            "decode": lambda inputs: _prefill(as_prefill(inputs)),
            "backward": _backward(deterministic=False),
        },
        missing,
        features=("window", "soft_cap", "sinks"),
    ),
    Peer(
        "flash_attention_4_ordered",
        PACKAGE,
        "the same with deterministic=True, which sums dQ in one order",
        PEER_POLICY,
        {"backward": _backward(deterministic=True)},
        missing,
        features=("window", "soft_cap", "sinks"),
    ),
)
