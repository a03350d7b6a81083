"""FlexAttention: torch compiles a variant's changes of the scores, and skips blocks of keys.

It has no sinks. As transformers does, `attend` multiplies its output by the sigmoid of LSE - sink,
through which autograd takes the gradient of the sink. This is right in exact numbers, but the
output is rounded to 16 bits before the product and after it, and dO times the sigmoid is rounded
too, which a kernel that knows the sink does not do. The first rows see few keys, so that dS is a
small difference there: their dq exceeds its bound (recorded: 18.7 times), while dk, dv and dsinks
keep theirs. In an emulation of 1,024 tokens dq reaches 4.1 of its bound, and 0.73 without these
roundings. An output that fails has no time in the table.
"""

from collections.abc import Callable

import torch

from labkernels.kernels.backward.inputs import BackwardInputs
from labkernels.kernels.call import Attention, Gradients, SinkGradients, Step
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.measure.peers import torch_sdpa
from labkernels.measure.peers.dense import as_prefill, dense, tokens
from labkernels.measure.peers.peer import PEER_POLICY, Peer, Refused, refusals
from labkernels.variant import UNMASKED


def missing() -> str | None:
    """Return why FlexAttention cannot run here, or None."""
    return torch_sdpa.missing() or (None if torch.cuda.is_available() else "there is no CUDA GPU")


def attention(inputs: PrefillInputs) -> Callable:
    """Return the compiled attention of q, k, v [B, heads, L, D], and of sinks [heads] if any.

    Raises: Refused for pages, or if lengths differ.
    """
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    work, variant, slopes = inputs.workload, inputs.variant, inputs.options.get("alibi")
    if work.page_size is not None or len({*work.q_lens}) != 1 or len({*work.kv_lens}) != 1:
        raise Refused("lengths differ or K and V are paged, and it takes one dense tensor")
    rows, length = work.q_lens[0], work.kv_lens[0]
    ends = (variant.window_left, 0 if variant.causal else variant.window_right)
    left, right = (length if end is None else end for end in ends)
    before = length - rows

    def seen(batch, head, query, key):
        return (key <= query + before + right) & (key >= query + before - left)

    def shaped(score, batch, head, query, key):
        if variant.soft_cap is not None:
            score = variant.soft_cap * torch.tanh(score / variant.soft_cap)
        return score if slopes is None else score + slopes[head] * (key - query - before)

    def attend(q, k, v, sinks=None):
        if sinks is None:
            return flex_attention(q, k, v, **how)
        out, aux = flex_attention(q, k, v, return_aux=AuxRequest(lse=True), **how)
        return (out * torch.sigmoid(aux.lse - sinks[:, None])[..., None]).to(out.dtype)

    mask = create_block_mask(seen, None, None, rows, length, device=str(inputs.q.device))
    how = {"block_mask": mask, "scale": inputs.scale, "enable_gqa": work.group > 1}
    if {"soft_cap", "alibi"} & set(variant.features):
        how["score_mod"] = shaped
    return torch.compile(attend)


def _prefill(inputs: PrefillInputs) -> Step:

    attend, newest, batch = attention(inputs), [], inputs.workload.batch
    tensors = [dense(x, batch) for x in (inputs.q, inputs.kv.k, inputs.kv.v)]
    tensors += [inputs.options["sinks"]] if inputs.variant.sinks else []

    def run() -> None:
        with torch.no_grad():
            newest[:] = [attend(*tensors)]

    with refusals(Exception):
        run()
    return Step(run, lambda: Attention(tokens(newest[0])), version=torch_sdpa.version())


def _backward(inputs: BackwardInputs) -> Step:
    """Prepare its gradients; this also runs the forward pass."""
    from torch._functorch import config as functorch

    attend, newest, of = attention(inputs.forward), [], inputs.forward
    dout, *given = (dense(x, of.workload.batch) for x in (inputs.dout, of.q, of.kv.k, of.kv.v))
    given += [of.options["sinks"]] if inputs.variant.sinks else []
    leaves = [x.detach().requires_grad_() for x in given]

    def run() -> None:
        newest[:] = torch.autograd.grad(out, leaves, dout, retain_graph=True)

    # with it torch reuses the buffers of the first gradients, and refuses to run them again
    functorch.donated_buffer = False
    with refusals(Exception):
        out = attend(*leaves)
        run()
    forward = Attention(tokens(out.detach()))
    kind = SinkGradients if inputs.variant.sinks else Gradients
    how = {"version": torch_sdpa.version(), "forward": forward}
    return Step(run, lambda: kind(*map(tokens, newest[:3]), *newest[3:]), **how)


PEERS = (
    Peer(
        "flex_attention",
        "torch",
        "torch's FlexAttention, compiled for the variant",
        PEER_POLICY,
        {
            "prefill": _prefill,
            "decode": lambda inputs: _prefill(as_prefill(inputs)),
            "backward": _backward,
        },
        missing,
        features=UNMASKED,
    ),
)
