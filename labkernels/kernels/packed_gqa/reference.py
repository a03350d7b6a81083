"""Plain torch attention, request by request: float64 is the truth, 16 bits the baseline."""

import math
from collections.abc import Mapping

import torch

from labkernels.kernels.caches.mask import unpacked
from labkernels.kernels.call import Attention, Step, plan_of
from labkernels.kernels.packed_gqa.call import PackedCall, schedule_of
from labkernels.variant import FULL, AttentionVariant


def prepare(call: PackedCall) -> Step[Attention]:
    """Prepare the torch operations. Requested splits are ignored."""
    plan = plan_of(
        call,
        blocks=len(schedule_of(call).work),
        keys_per_split=max(1, int(call.lengths.kv.max())),
        batch_invariant=call.batch_invariant,
    )
    dtype = torch.float64 if call.choice.instance.policy.p == "fp64" else call.q.dtype

    def run() -> None:
        first, bits = 0, _bits(call)
        for i, n in enumerate(call.lengths.q.tolist()):
            tokens = slice(first, first + n)
            q, (k, v) = call.queries(tokens), call.kv.of_request(i)
            wide = (x.to(dtype) for x in (q, k, v))
            seen = None if bits is None else bits[tokens, : len(k)]
            call.out[tokens], call.lse2[tokens] = attend(call, *wide, seen)
            first += n

    return Step(run, call.outputs, plan)


def _bits(call: PackedCall) -> torch.Tensor | None:
    mask = call.variant_tensors.get("mask")
    if mask is None:
        return None
    return torch.from_numpy(unpacked(mask, call.lengths.q, call.lengths.kv)).to(mask.device)


def attend(call: PackedCall, q, k, v, seen=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and lse2 of some queries over their keys; each product rounds to q's dtype.

    Shapes: q [tokens, q_heads, D], k [keys, kv_heads, D], v [keys, kv_heads, Dv]; out [tokens,
    q_heads, Dv]; lse2 [tokens, q_heads] float64, base 2. seen: bits of the mask [tokens, keys].
    """
    k, v = (x.transpose(0, 1) for x in (k, v))
    q = q.transpose(0, 1).unflatten(0, (len(k), q.shape[1] // len(k)))
    s = q @ k.unsqueeze(1).transpose(2, 3) * call.scale
    if seen is None:
        p, lse2 = softmax(s, call.variant, call.variant_tensors)
    else:
        of_heads = {n: x for n, x in call.variant_tensors.items() if n != "mask"}
        p, lse2 = softmax(s, call.variant, of_heads, seen)
    out = (p @ v.unsqueeze(1)).flatten(0, 1).transpose(0, 1)
    return out, lse2.flatten(0, 1).transpose(0, 1)


def softmax(
    s: torch.Tensor,
    variant: AttentionVariant,
    tensors: Mapping[str, torch.Tensor],
    seen: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return P of scores as the variant changes them, and lse2 in float64, base 2.

    Shapes: s and P [kv_heads, group, tokens, keys]; tensors [q_heads].
    A row without keys has only scores of -inf, for which torch's softmax gives NaN; P is then 0.
    """
    n, n_keys = s.shape[-2:]
    of_heads = {name: x.to(s.dtype).view(*s.shape[:2], 1, -1) for name, x in tensors.items()}
    if variant.soft_cap is not None:
        s = variant.soft_cap * torch.tanh(s / variant.soft_cap)
    if variant != FULL:
        query = torch.arange(n, device=s.device)[:, None]
        key = torch.arange(n_keys, device=s.device)
        if variant.alibi:
            s = s + of_heads["alibi"] * (key - (n_keys - n + query))
        if variant.reach is not None:
            distance = key - (n_keys - n + query)
            column = distance.clamp(-variant.reach, variant.reach) + variant.reach
            s = s + of_heads["bias"][:, :, 0, column]
        begin, end = (find(query, n, n_keys) for find in (variant.begin, variant.end))
        s = s.masked_fill((key < begin) | (key >= end), -math.inf)
    if seen is not None:
        s = s.masked_fill(~seen, -math.inf)
    if variant.sinks:  # one more score, without a value
        s = torch.cat((s, of_heads["sinks"].expand(*s.shape[:3], 1)), dim=-1)
    p = torch.softmax(s, dim=-1).nan_to_num()[..., :n_keys]
    return p, torch.logsumexp(s.to(torch.float64), dim=-1) / math.log(2)
