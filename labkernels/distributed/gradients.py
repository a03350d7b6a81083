"""The verb `ring_backward`: K and V go round, and their gradients travel with them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Unpack

import torch

from labkernels.distributed.decode import PartOptions
from labkernels.distributed.ranks import Ranks
from labkernels.distributed.ring import Block, Held, pair_of, ring_facts
from labkernels.kernels.backward.api import backward_step
from labkernels.kernels.call import Gradients, Step, nothing, require_options


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
) -> Step[Gradients]:
    """Compute the gradients of `ring_prefill`, given dout, the gradient of its output.

    A pair of chunks gives gradients in the format of q, by `backward` with the out and lse2 of the
    whole row. Their sums are fp32 and rounded once: dq stays, and dk and dv go round with their K
    and V, which one rank after the other adds to, the keys' own first. They travel while the next
    pair is computed. Every sum has one order, so that the same call gives the same bits. The step
    is as that of `ring_prefill`.
    Shapes: dout, q, out [tokens, q_heads, head_dim], k, v [tokens, kv_heads, head_dim], lse2
    [tokens, q_heads] fp32: the tokens of this rank, as for `ring_prefill`.
    Error: numerics.error.gradient_bounds, and half a spacing of each pair's gradient.
    Raises: as `context_parallel_decode`.

    >>> from labkernels.distributed import ring_prefill
    >>> q, k, v, dout = torch.randn(4, 8, 2, 64).half()
    >>> out, lse2 = ring_prefill(q, k, v, Ranks()).outputs()
    >>> ring_backward(dout, q, k, v, out, lse2, Ranks()).dv.shape
    torch.Size([8, 2, 64])
    """
    given = Rows(dout, q, k, v, out, lse2)

    def make() -> tuple[tuple, dict[str, object]]:
        require_options("ring_backward", options, PartOptions)
        facts, held = ring_facts(given._asdict()), Held(k, v, ranks)
        found = Gradients(*(x.new_empty(x.shape) for x in (q, k, v)))
        how = {"causal": causal, **options}
        pairs = [_pair(given, found, block, ranks.rank, **how) for block in held.blocks]
        return (held.turns, found, pairs), facts | how

    turns, found, pairs = ranks.agree(make)
    dq, carry = given.sums()
    carries = carry, torch.empty_like(carry)

    def run() -> None:
        for x in (dq, carry):
            x.zero_()
        home = nothing
        for turn in turns():
            step, add = pairs[turn]
            step.run()
            home()  # the carry of these keys, to which the ranks before have added
            add(dq, carries[turn % 2])
            home = ranks.pass_on(carries[turn % 2], carries[(turn + 1) % 2])
        home()
        for to, total in zip(found, (dq, *carries[ranks.size % 2]), strict=True):
            to.copy_(total)

    run()
    return Step(run, lambda: found, pairs[0][0].plan)


def ring_backward_in_turn(
    given: Sequence[Rows], *, causal: bool = True, **options: Unpack[PartOptions]
) -> list[Gradients]:
    """Compute in one process the bits that `ring_backward` gives each rank.

    given: what each rank has, in the order of ranks. Raises: as `backward`.

    >>> from labkernels.distributed import ring_prefill
    >>> q, k, v, dout = torch.randn(4, 8, 2, 64).half()
    >>> rows = Rows(dout, q, k, v, *ring_prefill(q, k, v, Ranks()).outputs())
    >>> ring_backward_in_turn([rows])[0].dk.dtype
    torch.float16
    """
    sums = [rows.sums() for rows in given]
    found = [Gradients(*(x.new_empty(x.shape) for x in rows[1:4])) for rows in given]
    for turn in range(len(given)):
        for rank, rows in enumerate(given):
            origin = (rank - turn) % len(given)
            block = Block(origin, given[origin].k, given[origin].v)
            step, add = _pair(rows, found[rank], block, rank, causal=causal, **options)
            step.run()
            add(sums[rank][0], sums[origin][1])
    for of_rank, (dq, carry) in zip(found, sums, strict=True):
        for to, total in zip(of_rank, (dq, *carry), strict=True):
            to.copy_(total)
    return found


def _pair(
    given: Rows,
    found: Gradients,
    block: Block,
    rank: int,
    *,
    causal: bool,
    **options: Unpack[PartOptions],
) -> tuple[Step, Callable[[torch.Tensor, torch.Tensor], None]]:
    """Prepare the gradients of a rank's rows and a block's keys; return also what adds them."""
    rows, keys, asked = pair_of(given.q, block.k, rank, block.origin, causal=causal)
    dout, q, out, lse2 = (x[rows] for x in (given.dout, given.q, given.out, given.lse2))
    to = {"dq": found.dq[rows], "dk": found.dk[keys], "dv": found.dv[keys]}
    how = {"deterministic": True, **asked, **options}
    step = backward_step(dout, q, block.k[keys], block.v[keys], out, lse2, **how, **to)

    def add(dq: torch.Tensor, carry: torch.Tensor) -> None:
        dq[rows] += step.dq
        carry[0, keys] += step.dk
        carry[1, keys] += step.dv

    return step, add
