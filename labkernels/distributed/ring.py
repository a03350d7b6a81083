"""The verb `ring_prefill`: K and V of each rank go round, and every rank attends to all of them."""

import contextlib
from collections.abc import Generator, Iterator
from typing import Any, Unpack

import torch

from labkernels.distributed.decode import CARRIES, PartOptions, carried
from labkernels.distributed.ranks import Ranks
from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.call import Attention, require_options
from labkernels.kernels.merge_states.api import merge_states
from labkernels.kernels.prefill.api import prefill
from labkernels.units import require_choice

Blocks = Iterator[tuple[int, torch.Tensor, torch.Tensor]]  # rank of origin, k, v


def zigzag(tokens: int, rank: int, ranks: int) -> torch.Tensor:
    """Return the places of a rank's tokens: a chunk from the front, and one as far from the end.

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
    **options: Unpack[PartOptions],
) -> Attention:
    """Compute the prefill of one sequence whose tokens are spread over ranks as `zigzag` says.

    K and V arrive from the rank before while a kernel works on those that are there; its outputs
    are merged with the sum so far. carry: the format of this sum, "fp32", which is rounded once at
    the end, or "input", which is rounded to that of q every time.
    Shapes: q, out [tokens, q_heads, head_dim], k, v [tokens, kv_heads, head_dim], lse2 [tokens,
    q_heads] fp32: the tokens of this rank, equally many on all.
    Error: numerics.error.merging. Raises: as `context_parallel_decode`.

    >>> q, k, v = torch.randn(3, 8, 2, 64).half()
    >>> ring_prefill(q, k, v, Ranks()).out.shape
    torch.Size([8, 2, 64])
    """

    def make() -> tuple[None, dict[str, object]]:
        require_choice("carry", carry, CARRIES)
        require_options("ring_prefill", options, PartOptions)
        facts = ring_facts({"q": q, "k": k, "v": v})
        return None, {**facts, "causal": causal, "carry": carry, **options}

    ranks.agree(make)
    with contextlib.closing(_arriving(k, v, ranks)) as blocks:
        return ring_rows(q, blocks, ranks.rank, causal=causal, carry=carry, **options)


def ring_rows(
    q: torch.Tensor,
    blocks: Blocks,
    rank: int,
    *,
    causal: bool,
    carry: str,
    **options: Unpack[PartOptions],
) -> Attention:
    """Return the rows of one rank, given the blocks in the ring's order.

    One process that hands over the same blocks gets the same bits as the ring.
    """
    how = {"batch_invariant": True, **options, **carried("prefill", carry, options)}
    found = None
    for origin, k, v in blocks:
        rows, keys, asked = pair_of(q, k, rank, origin, causal=causal)
        kv = RaggedKV(k[keys], v[keys], asked.pop("cu_seqlens_k"))
        part = prefill(q[rows], kv, **asked, **how).outputs()
        if found is None:
            found = part
            continue
        states = (torch.stack([x[rows], y]) for x, y in zip(found, part, strict=True))
        found.out[rows], found.lse2[rows] = merge_states(*states).outputs()
    return Attention(found.out.to(q.dtype), found.lse2)


def pair_of(
    q: torch.Tensor, k: torch.Tensor, rank: int, origin: int, *, causal: bool
) -> tuple[slice, slice, dict[str, Any]]:
    """Return which rows of a rank see which keys that came from `origin`, and the kernel's options.

    The options have the ends of rows and keys, too, under the names that `backward` gives them.
    """
    # two chunks a rank: of an earlier rank only the first is seen, a later one's by the last
    half = len(q) // 2
    rows = slice(half, None) if causal and origin > rank else slice(None)
    keys = slice(half) if causal and origin < rank else slice(None)
    n_rows, n_keys = len(q[rows]), len(k[keys])
    ends = [torch.tensor([0, n], dtype=torch.int32) for n in (n_rows, n_keys)]
    of_q, of_k = (x.to(q.device, non_blocking=True) for x in ends)
    how = {"causal": causal and origin == rank, "q_lens": [n_rows], "kv_lens": [n_keys]}
    return rows, keys, {"cu_seqlens_q": of_q, "cu_seqlens_k": of_k, **how}


def ring_facts(given: dict[str, torch.Tensor]) -> dict[str, object]:
    """Return what all ranks of a ring must have in common; raise ValueError for a wrong shape."""
    for name, x in given.items():
        arguments.require_tensor(name, x)
    for name in ("q", "k", "v"):
        x, q = given[name], given["q"]
        if x.dim() != 3 or not len(x) or len(x) % 2 or x[..., 0, :].shape != q[..., 0, :].shape:
            words = "[tokens, heads, head_dim], of two equal chunks, as q"
            raise ValueError(f"{name}.shape = {tuple(x.shape)}, allowed: {words}")
        if x.dtype != q.dtype:
            raise ValueError(f"{name}.dtype = {x.dtype}, allowed: {q.dtype}, as q")
    facts: dict[str, object] = {f"{name}.dtype": x.dtype for name, x in given.items()}
    return facts | {f"{name}.shape": tuple(x.shape) for name, x in given.items()}


def _arriving(
    k: torch.Tensor, v: torch.Tensor, ranks: Ranks
) -> Generator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield K and V of this rank, then of each earlier one; the next arrives meanwhile."""
    held = torch.stack([k, v])
    for step in range(ranks.size):
        coming, more = torch.empty_like(held), step < ranks.size - 1
        wait = ranks.pass_on(held, coming) if more else lambda: None
        try:
            yield (ranks.rank - step) % ranks.size, held[0], held[1]
        finally:  # also after an error, so that the next exchange is not in the way of this one
            wait()
        held = coming
