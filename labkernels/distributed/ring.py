"""The verb `ring_prefill`: K and V of each rank go round, and every rank attends to all of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import torch

from labkernels.distributed.decode import CARRIES, PartOptions, carried
from labkernels.distributed.ranks import Ranks
from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.call import Attention, Step, check_option, require_options
from labkernels.kernels.merge_states.api import merge_states_step
from labkernels.kernels.prefill.api import prefill_step
from labkernels.units import require_choice, require_int


class Block(NamedTuple):
    """K and V [tokens, kv_heads, head_dim] of the rank of origin."""

    origin: int
    k: torch.Tensor
    v: torch.Tensor


class Held:
    """The blocks that a rank sees in turn: its own, then that of each earlier rank."""

    def __init__(self, k: torch.Tensor, v: torch.Tensor, ranks: Ranks):
        self.own, self.ranks = (k, v), ranks
        self.rooms = k.new_empty(min(ranks.size, 2), 2, *k.shape)  # one is read, one is filled
        origins = ((ranks.rank - turn) % ranks.size for turn in range(ranks.size))
        self.blocks = [Block(x, *self.rooms[turn % 2]) for turn, x in enumerate(origins)]

    def turns(self) -> Iterator[int]:
        """Yield the number of each block once it is there; the next one arrives meanwhile."""
        for room, x in zip(self.rooms[0], self.own, strict=True):
            room.copy_(x)
        for turn in range(self.ranks.size - 1):
            wait = self.ranks.pass_on(self.rooms[turn % 2], self.rooms[(turn + 1) % 2])
            yield turn
            wait()
        yield self.ranks.size - 1


def zigzag(tokens: int, rank: int, ranks: int) -> torch.Tensor:
    """Return the places of a rank's tokens: a chunk from the front, and one as far from the end.

    Under a causal mask each rank then has equally many keys to attend to.
    Raises: ValueError unless tokens divide into equal chunks, and for a rank that is none.

    >>> [zigzag(8, rank, 2).tolist() for rank in range(2)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    require_int("rank", rank, maximum=require_int("ranks", ranks, minimum=1) - 1)
    if require_int("tokens", tokens) % (2 * ranks):
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
) -> Step[Attention]:
    """Compute the prefill of one sequence whose tokens are spread over ranks as `zigzag` says.

    K and V arrive from the rank before while a kernel works on those that are there; its outputs
    are merged with the sum so far. carry: the format of this sum, "fp32", which is rounded once at
    the end, or "input", which is rounded to that of q every time. The step may run again, on all
    ranks equally often, and be captured in a CUDA graph; its plan is that of the rank's own keys.
    Shapes: q, out [tokens, q_heads, head_dim], k, v [tokens, kv_heads, head_dim], lse2 [tokens,
    q_heads] fp32: the tokens of this rank, equally many on all.
    Error: numerics.error.merging. Raises: as `context_parallel_decode`.

    >>> q, k, v = torch.randn(3, 8, 2, 64).half()
    >>> ring_prefill(q, k, v, Ranks()).out.shape
    torch.Size([8, 2, 64])
    """

    def make() -> tuple[Step[Attention], dict[str, object]]:
        require_choice("carry", carry, CARRIES)
        require_options("ring_prefill", options, PartOptions)
        facts, held = ring_facts({"q": q, "k": k, "v": v}), Held(k, v, ranks)
        how = {"causal": causal, "carry": carry, **options}
        step = ring_rows_step(q, held.blocks, ranks.rank, turns=held.turns, **how)
        return step, facts | how

    step = ranks.agree(make)
    step.run()
    return step


def ring_rows_step(
    q: torch.Tensor,
    blocks: Sequence[Block],
    rank: int,
    *,
    causal: bool,
    carry: str,
    turns: Callable[[], Iterable[int]] | None = None,
    **options: Unpack[PartOptions],
) -> Step[Attention]:
    """Prepare the rows of one rank, given the blocks in the ring's order.

    One process that has the same blocks gets the same bits as the ring. turns: yields the number of
    each block once it is there; by default all are.
    """
    carry, device = carry if len(blocks) > 1 else "input", q.device
    how = {"batch_invariant": True, **options, **carried("prefill", carry, options)}
    # the sum so far, a part, and what they give, which a merge must not write over what it reads
    wide = torch.float32 if carry == "fp32" else q.dtype
    outs = torch.empty(min(len(blocks), 3), *q.shape, dtype=wide, device=device)
    lse2s = torch.empty(outs.shape[:-1], device=device)
    result = Attention(q.new_empty(q.shape), torch.empty_like(lse2s[0]))
    rooms = [Attention(*x) for x in zip(outs, lse2s, strict=True)] if len(blocks) > 1 else [result]
    steps: list[list[Step[Attention]]] = []
    copies: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
    for turn, (origin, k, v) in enumerate(blocks):
        rows, keys, asked = pair_of(q, k, rank, origin, causal=causal)
        kv = RaggedKV(k[keys], v[keys], asked.pop("cu_seqlens_k"))
        part = {"out": rooms[turn > 0].out[rows], "lse2": rooms[turn > 0].lse2[rows]}
        steps.append([prefill_step(q[rows], kv, **asked, **how, **part)])
        copies.append([])
        if turn:
            last = turn == len(blocks) - 1
            to = result if last else rooms[2]
            merged = {"out": to.out[rows], "lse2": to.lse2[rows]}
            steps[turn].append(merge_states_step(outs[:2, rows], lse2s[:2, rows], **merged))
            # into the result go also the rows that have no part in the last turn
            some = slice(rows.start or 0) if last else rows
            pairs = zip(result, rooms[0], strict=True) if last else zip(rooms[0], to, strict=True)
            copies[turn] += [(x[some], y[some]) for x, y in pairs]

    def run() -> None:
        for turn in turns() if turns else range(len(blocks)):
            for step in steps[turn]:
                step.run()
            for to, source in copies[turn]:
                to.copy_(source)

    return Step(run, lambda: result, steps[0][0].plan)


def pair_of(
    q: torch.Tensor, k: torch.Tensor, rank: int, origin: int, *, causal: bool
) -> tuple[slice, slice, dict[str, Any]]:
    """Return which rows of a rank see which keys that came from `origin`, and the kernel's options.

    The options have the ends of rows and keys, too, under the names that `backward` gives them.
    """
    check_option("causal", causal)
    # two chunks a rank: of an earlier rank only the first is seen, a later one's by the last
    half = len(q) // 2
    rows = slice(half, None) if causal and origin > rank else slice(None)
    keys = slice(half) if causal and origin < rank else slice(None)
    n_rows, n_keys = len(q[rows]), len(k[keys])
    ends = [torch.tensor([0, n], dtype=torch.int32, device=q.device) for n in (n_rows, n_keys)]
    how = {"causal": causal and origin == rank, "q_lens": [n_rows], "kv_lens": [n_keys]}
    return rows, keys, {"cu_seqlens_q": ends[0], "cu_seqlens_k": ends[1], **how}


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
    k, v = given["k"], given["v"]
    if v.shape != k.shape:
        raise ValueError(f"v.shape = {tuple(v.shape)}, allowed: {tuple(k.shape)}, as k")
    facts: dict[str, object] = {f"{name}.dtype": x.dtype for name, x in given.items()}
    return facts | {f"{name}.shape": tuple(x.shape) for name, x in given.items()}
