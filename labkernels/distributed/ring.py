"""The verb `ring_prefill`: K and V of each rank go round, and every rank attends to all of them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Unpack

import torch

from labkernels.distributed.decode import CARRIES, policy_of
from labkernels.distributed.ranks import Ranks
from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.call import Attention, Options, require_options
from labkernels.kernels.merge_states.api import merge_states
from labkernels.kernels.prefill.api import prefill
from labkernels.units import require_choice

KeysOf = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


class RingOptions(Options, total=False):
    """The options of a ring prefill; windows and slopes need places that a chunk lacks."""

    scale: float | None
    soft_cap: float | None


def zigzag(tokens: int, rank: int, ranks: int) -> torch.Tensor:
    """Return the places of a rank's tokens: of 2 ranks chunks one from the front, one from the end.

    Under a causal mask each rank then has equally many keys to attend to.
    Raises: ValueError unless tokens divide into equal chunks.

    >>> [zigzag(8, rank, 2).tolist() for rank in range(2)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    if tokens % (2 * ranks):
        raise ValueError(
            f"tokens = {tokens}, allowed: a multiple of {2 * ranks}, two chunks a rank"
        )
    chunks = torch.arange(tokens).view(2 * ranks, -1)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])


def ring_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranks: Ranks,
    *,
    causal: bool = True,
    carry: str = "fp32",
    **options: Unpack[RingOptions],
) -> Attention:
    """Compute the prefill of one sequence whose tokens are spread over ranks as `zigzag` says.

    K and V of one rank after the other arrive from the rank before, while a kernel works on those
    that are there; its outputs are merged with the sum so far. carry: the format of this sum,
    "fp32", which is rounded once at the end, or "input", which is rounded to that of q every time.
    Shapes: q, out [tokens, q_heads, head_dim], k, v [tokens, kv_heads, head_dim], lse2 [tokens,
    q_heads] fp32: the tokens of this rank, equally many on all.
    Error: numerics.error.merging has the growth with the ranks of both carries.
    Raises: the same ValueError on every rank, naming the rank, the argument, its value and what is
    allowed; LostRank, in one line, if a rank ends or does not answer.

    >>> q, k, v = torch.randn(3, 8, 2, 64).half()
    >>> ring_prefill(q, k, v, Ranks()).out.shape
    torch.Size([8, 2, 64])
    """

    def make() -> tuple[None, dict[str, object]]:
        _check(q, k, v, carry, options)
        facts = {"q.dtype": q.dtype, "q.shape": tuple(q.shape), "k.shape": tuple(k.shape)}
        return None, facts | {"causal": causal, "carry": carry, **options}

    ranks.agree(make)
    blocks = _arriving(k, v, ranks)
    return ring_rows(q, blocks, ranks.rank, causal=causal, carry=carry, **options)


def ring_rows(
    q: torch.Tensor,
    blocks: Iterator[tuple[int, torch.Tensor, torch.Tensor]],
    rank: int,
    *,
    causal: bool,
    carry: str,
    **options: Unpack[RingOptions],
) -> Attention:
    """Return the rows of one rank, given the blocks (rank of origin, k, v) in the ring's order.

    One process that hands over the same blocks gets the same bits as the ring.

    >>> q, k, v = torch.randn(3, 8, 2, 64).half()
    >>> ring_rows(q, iter([(0, k, v)]), 0, causal=True, carry="fp32").lse2.shape
    torch.Size([8, 2])
    """
    policy, out_dtype = policy_of("prefill", options), q.dtype
    if carry == "fp32":
        options = {**options, "policy": replace(policy, out="fp32")}
        out_dtype = torch.float32
    half = len(q) // 2
    found = None
    for origin, k, v in blocks:
        rows = slice(half, None) if causal and origin > rank else slice(None)
        keys = slice(half) if causal and origin < rank else slice(None)
        part = _attend(q[rows], k[keys], v[keys], causal=causal and origin == rank, **options)
        if found is None:
            found = part
            continue
        outs, lse2s = (torch.stack([old[rows], new]) for old, new in zip(found, part, strict=True))
        merged = merge_states(outs, lse2s, out=torch.empty_like(part.out, dtype=out_dtype))
        found.out[rows], found.lse2[rows] = merged.outputs()
    return Attention(found.out.to(q.dtype), found.lse2)


def _attend(q, k, v, *, causal: bool, **options: Unpack[RingOptions]) -> Attention:
    ends = [torch.tensor([0, len(x)], dtype=torch.int32, device=q.device) for x in (q, k)]
    lens = {"q_lens": [len(q)], "kv_lens": [len(k)]}
    kv = RaggedKV(k, v, ends[1])
    return prefill(q, kv, ends[0], causal=causal, batch_invariant=True, **lens, **options).outputs()


def _check(q, k, v, carry: str, options: RingOptions) -> None:
    require_choice("carry", carry, CARRIES)
    require_options("ring_prefill", options, RingOptions)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        arguments.require_tensor(name, tensor)
        if tensor.dim() != 3 or len(tensor) % 2 or not len(tensor):
            words = "[tokens, heads, head_dim], of two chunks"
            raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: {words}")
    if k.shape != v.shape or len(k) != len(q) or k.dtype != v.dtype:
        found = f"k, v of {tuple(k.shape)}, {tuple(v.shape)}"
        raise ValueError(f"{found}, allowed: alike, and of the {len(q)} tokens of q")


def _arriving(
    k: torch.Tensor, v: torch.Tensor, ranks: Ranks
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield K and V of this rank, then of each earlier one; the next arrives meanwhile."""
    held = torch.stack([k, v])
    for step in range(ranks.size):
        last, coming = step == ranks.size - 1, torch.empty_like(held)
        wait = None if last else ranks.pass_on(held, coming)
        yield (ranks.rank - step) % ranks.size, held[0], held[1]
        if wait is not None:
            wait()
        held = coming
