"""The verb `ring_backward`: K and V go round, and their gradients travel with them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Unpack

import torch

from labkernels.distributed.decode import PartOptions
from labkernels.distributed.ranks import Ranks
from labkernels.distributed.ring import pair_of, ring_facts
from labkernels.kernels.backward.api import backward
from labkernels.kernels.call import Gradients, require_options


class Rows(NamedTuple):
    """What a rank has of a forward pass: its tokens' tensors, and the gradient of their output."""

    dout: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse2: torch.Tensor

    def sums(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return zeros in fp32 for dq, and for dk and dv together."""
        dq = torch.zeros_like(self.q, dtype=torch.float32)
        return dq, torch.zeros_like(torch.stack([self.k, self.v]), dtype=torch.float32)


def ring_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse2: torch.Tensor,
    ranks: Ranks,
    *,
    causal: bool = True,
    **options: Unpack[PartOptions],
) -> Gradients:
    """Compute the gradients of `ring_prefill`, given dout, the gradient of its output.

    A pair of chunks gives gradients in the format of q, by `backward` with the out and lse2 of the
    whole row. Their sums are fp32 and rounded once: dq stays, and dk and dv go round with their K
    and V, which one rank after the other adds to, the keys' own first. They travel while the next
    pair is computed. Every sum has one order, so that the same call gives the same bits.
    Shapes: dout, q, out [tokens, q_heads, head_dim], k, v [tokens, kv_heads, head_dim], lse2
    [tokens, q_heads] fp32: the tokens of this rank, as for `ring_prefill`.
    Error: numerics.error.gradient_bounds, and half a spacing of each pair's gradient.
    Raises: as `context_parallel_decode`.

    >>> from labkernels.distributed import ring_prefill
    >>> q, k, v, dout = torch.randn(4, 8, 2, 64).half()
    >>> out, lse2 = ring_prefill(q, k, v, Ranks())
    >>> ring_backward(dout, q, k, v, out, lse2, Ranks()).dv.shape
    torch.Size([8, 2, 64])
    """
    given = Rows(dout, q, k, v, out, lse2)

    def make() -> tuple[None, dict[str, object]]:
        require_options("ring_backward", options, PartOptions)
        return None, {**ring_facts(given._asdict()), "causal": causal, **options}

    ranks.agree(make)
    dq, carry = given.sums()
    held, home = torch.stack([k, v]), lambda: None
    for step in range(ranks.size):
        origin, coming = (ranks.rank - step) % ranks.size, torch.empty_like(held)
        more = step < ranks.size - 1
        arrived = ranks.pass_on(held, coming) if more else lambda: None
        try:
            add = _pair(given, *held, ranks.rank, origin, causal=causal, **options)
        finally:  # also after an error, so that the next exchange is not in the way of this one
            arrived()
        home()  # the carry of these keys, to which the ranks before have added
        add(dq, carry)
        if ranks.size > 1:
            sent, carry = carry, torch.empty_like(carry)
            home = ranks.pass_on(sent, carry)
        held = coming
    home()
    return _rounded(given, dq, carry)


def ring_backward_in_turn(
    given: Sequence[Rows], *, causal: bool = True, **options: Unpack[PartOptions]
) -> list[Gradients]:
    """Compute in one process the bits that `ring_backward` gives each rank.

    given: what each rank has, in the order of ranks. Raises: as `backward`.

    >>> from labkernels.distributed import ring_prefill
    >>> q, k, v, dout = torch.randn(4, 8, 2, 64).half()
    >>> rows = Rows(dout, q, k, v, *ring_prefill(q, k, v, Ranks()))
    >>> ring_backward_in_turn([rows])[0].dk.dtype
    torch.float16
    """
    sums = [rows.sums() for rows in given]
    for step in range(len(given)):
        for rank, rows in enumerate(given):
            origin = (rank - step) % len(given)
            k, v = given[origin].k, given[origin].v
            add = _pair(rows, k, v, rank, origin, causal=causal, **options)
            add(sums[rank][0], sums[origin][1])
    return [_rounded(rows, *two) for rows, two in zip(given, sums, strict=True)]


def _pair(
    given: Rows,
    k: torch.Tensor,
    v: torch.Tensor,
    rank: int,
    origin: int,
    *,
    causal: bool,
    **options: Unpack[PartOptions],
) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Compute the gradients of a rank's rows and one rank's keys; return what adds them to sums."""
    rows, keys, asked = pair_of(given.q, k, rank, origin, causal=causal)
    dout, q, out, lse2 = (x[rows] for x in (given.dout, given.q, given.out, given.lse2))
    how = {"deterministic": True, **asked, **options}
    step = backward(dout, q, k[keys], v[keys], out, lse2, **how)

    def add(dq: torch.Tensor, carry: torch.Tensor) -> None:
        dq[rows] += step.dq
        carry[0, keys] += step.dk
        carry[1, keys] += step.dv

    return add


def _rounded(given: Rows, dq: torch.Tensor, carry: torch.Tensor) -> Gradients:
    return Gradients(*(x.to(given.q.dtype) for x in (dq, *carry)))
