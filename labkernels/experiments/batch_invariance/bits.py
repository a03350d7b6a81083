"""Which heads of a request change their bits as its batch grows, by library, beside a prediction.

The request is drawn once and runs alone and in batches of requests of its length. A decode's heads
are predicted from the scores; where bits of ours can be emulated, from the emulated bits. Of a
prefill it is only predicted whether the cut changes.
"""

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkernels.experiments.batch_invariance import ways
from labkernels.experiments.batch_invariance.ways import Ran, Way
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.workers import all_cores
from labkernels.kernels.checks import target_gpu
from labkernels.measure.peers import flashinfer, peer
from labkernels.measure.peers.peer import Tensors
from labkernels.numerics.arrays import as_float64
from labkernels.planners import Cut, NotKnown
from labkernels.planners.prediction import output
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import LOG2_E, GiB

DATA_FILE = "accuracy/batch_bits.parquet"
DTYPE = "bf16"
BATCHES = (2, 4, 8, 16, 32, 64, 128, 256)
KV_BYTES_MAX = 12 * GiB  # of a batch's keys and values; larger batches are left out
SIZES = ("q_len", "kv_len", "q_heads", "kv_heads", "head_dim")
EMULATED_KEYS_MAX = 2048  # NumPy takes seconds per thousand keys


@dataclass(frozen=True)
class Shape:
    """A request, and the batches that it is repeated in. q_len: 1 for a decode."""

    q_len: int
    kv_len: int
    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    batches: tuple[int, ...] = BATCHES

    @property
    def operation(self) -> str:
        """Decode or prefill, which is causal."""
        return "decode" if self.q_len == 1 else "prefill"


SHAPES = (
    *(Shape(1, kv_len) for kv_len in (512, 2048, 8192)),
    *(Shape(kv_len, kv_len, batches=BATCHES[:5]) for kv_len in (512, 2048)),
)
QUICK = (Shape(1, 96, 4, 2, 64, (2,)), Shape(24, 24, 4, 2, 64, (2,)))


@dataclass(frozen=True, eq=False)
class Seen:
    """Request 0 of one batch, beside the request alone.

    ran: without the output. differs, unstable: heads with other bits than alone, and than in a
    second run of the same batch. ulps: the largest difference, in units of the output's format.
    """

    way: Way
    batch: int
    ran: Ran
    differs: np.ndarray
    unstable: np.ndarray
    ulps: int
    alone: Cut | None
    cut: Cut | None
    why: str = ""


def cells(options: Options) -> Iterator[Cell]:
    """Yield the shapes; `quick` has two tiny ones."""
    for shape in QUICK if options.quick else SHAPES:
        yield Cell(f"{shape.operation} of {shape.kv_len} keys", shape)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Run every way alone and in each batch, then predict, and yield a row for each batch."""
    shape: Shape = cell.of
    missing = recording.once(build_peers)
    given = draw(shape, seed=recording.options.seed, device=recording.device)
    found: list[Seen] = []
    with recording.sampling():
        for way in ways.ways(shape.operation):
            reason = missing.get(way.library) or way.missing()
            if reason:
                recording.tell(f"{way.name}: {reason}")
                continue
            try:
                found += seen(way, given, shape)
            except Exception as error:  # each library has error classes of its own
                if way.library == "labkernels":
                    raise
                recording.tell(f"{way.name}: {peer.one_line(error)}")
    with all_cores() as pool:
        predicted = Prediction(given, pool, found)
        for item in found:
            yield DATA_FILE, base_row(item, shape) | predicted.row(item)
    recording.tell(f"{len(found)} batches compared")


def build_peers(recording: Recording) -> dict[str, str]:
    """Compile the libraries' modules; return why a library cannot run here, by library."""
    shapes = [(DTYPE, QUICK[0].head_dim if recording.options.quick else SHAPES[0].head_dim)]
    return recording.build_peers("decode", shapes)


def draw(shape: Shape, *, seed: int, device: str) -> Tensors:
    """Draw normal requests for the largest batch; a batch has the first ones."""
    import torch

    source = torch.Generator(device).manual_seed(seed)
    kv = (shape.kv_len, shape.kv_heads)
    q, k, v = (
        torch.empty(
            max(batches(shape, 1)), *sizes, shape.head_dim, device=device, dtype=torch.bfloat16
        ).normal_(generator=source)
        for sizes in ((shape.q_len, shape.q_heads), kv, kv)
    )
    return Tensors(q, k, v, shape.head_dim**-0.5, shape.q_len > 1)


def first(given: Tensors, n: int) -> Tensors:
    """Return the first n requests."""
    return Tensors(given.q[:n], given.k[:n], given.v[:n], given.scale, given.causal)


def batches(shape: Shape, copies: int) -> tuple[int, ...]:
    """Return the batches whose K and V, in so many copies, are not too large."""
    one = 2 * 2 * shape.kv_len * shape.kv_heads * shape.head_dim * copies
    return tuple(n for n in shape.batches if n * one <= KV_BYTES_MAX)


def seen(way: Way, given: Tensors, shape: Shape) -> Iterator[Seen]:
    """Run a request alone and in each batch, and yield what its bits did."""
    gpu = target_gpu(given.q.device, None)

    def run(n: int) -> tuple[Any, Ran, Cut | None, str]:
        t = first(given, n)
        ran = way.run(t)
        out = ran.out[0].clone()
        ran = Ran(None, ran.version, ran.plan, ran.plan_info)
        try:
            return out, ran, ways.cut_of(way, ran, t, DTYPE, gpu), ""
        except NotKnown as error:
            return out, ran, None, str(error)

    out, _, alone, _ = run(1)
    for n in batches(shape, shape.q_heads // shape.kv_heads if way.repeats_kv else 1):
        in_batch, ran, cut, why = run(n)
        differs, ulps = compare(out, in_batch)
        unstable, _ = compare(in_batch, run(n)[0])
        yield Seen(way, n, ran, differs, unstable, ulps, alone, cut, why)


def compare(a, b) -> tuple[np.ndarray, int]:
    """Return which heads' bits differ, and the largest difference in the format's own steps.

    Shapes: a, b [M, H, D] of 16 bits; heads [H].
    """
    import torch

    whole = [x.contiguous().view(torch.int16).to(torch.int32) for x in (a, b)]
    left, right = (torch.where(x < 0, -(x & 0x7FFF), x) for x in whole)  # so that steps count
    differs = (whole[0] != whole[1]).any(dim=-1).any(dim=0)
    return differs.cpu().numpy(), int((left - right).abs().max())


def base_row(item: Seen, shape: Shape) -> Row:
    """Return what a batch's run gave."""
    way, ran = item.way, item.ran
    return {
        "way": way.name,
        "library": way.library,
        "version": ran.version,
        "operation": shape.operation,
        "dtype": DTYPE,
        **{name: getattr(shape, name) for name in SIZES},
        "page_size": flashinfer.PAGE_SIZE if way.paged else 0,
        "batch": item.batch,
        "heads_differ": int(item.differs.sum()),
        "heads_unstable": int(item.unstable.sum()),
        "ulps_max": item.ulps,
    }


class Prediction:
    """Predicts which heads of request 0 change; each cut's output is predicted once."""

    def __init__(self, given: Tensors, pool: Executor, found: list[Seen]) -> None:
        self.given = given
        self._emulated: dict[Any, Future] = {}
        self._outputs: dict[Any, np.ndarray] = {}
        for cut in [cut for item in found for cut in (item.alone, item.cut) if _other_cut(item)]:
            setting, key = setting_of(given, cut), cut.arithmetic(0)
            if setting is not None and key not in self._emulated:
                self._emulated[key] = pool.submit(_bits, setting)

    def row(self, item: Seen) -> Row:
        """Return the columns of a prediction; those of a cut that is not known stay empty."""
        blocks = item.ran.plan_info[0] if item.ran.plan_info else ""
        if item.alone is None or item.cut is None:
            return {"plan_blocks": blocks, "note": item.why}
        heads, method = self.heads(item)
        batch = item.way.batch(first(self.given, item.batch), DTYPE)
        agrees = ways.agrees(item.ran.plan_info, batch, item.cut)
        return {
            "cut_alone": item.alone.label(),
            "cut_batch": item.cut.label(),
            "heads_predicted": int(heads.sum()),
            "heads_right": int((heads == item.differs).sum()),
            "method": method,
            "plan_blocks": blocks,
            "plan_agrees": "" if agrees is None else agrees,
            "note": "",
        }

    def heads(self, item: Seen) -> tuple[np.ndarray, str]:
        """Return which heads change [H], and how that was predicted."""
        if not _other_cut(item):
            return np.zeros(len(item.differs), bool), "same cut"
        if not self.given.is_decode:
            return np.ones(len(item.differs), bool), "other cut"
        keys = [cut.arithmetic(0) for cut in (item.alone, item.cut)]
        if all(key in self._emulated for key in keys):
            left, right = (self._emulated[key].result() for key in keys)
            return ~(left == right).all(axis=(0, 2)), "emulated bits"
        left, right = (self._output(cut) for cut in (item.alone, item.cut))
        return ~(left == right).all(axis=-1), "running maximum"

    def _output(self, cut: Cut) -> np.ndarray:
        """Return the output [H, D] that the running maxima of request 0 predict."""
        key = cut.arithmetic(0)
        if key not in self._outputs:
            self._outputs[key] = output(*self._scores, cut, dtype=DTYPE).reshape(
                self.given.q.shape[2], -1
            )
        return self._outputs[key]

    @cached_property
    def _scores(self) -> tuple[np.ndarray, np.ndarray]:
        """The scores [Hkv, group, n] of request 0, in units of log2, and its values."""
        q, k, v = (as_float64(x[0]) for x in (self.given.q, self.given.k, self.given.v))
        k, v = (x.transpose(1, 0, 2)[:, None] for x in (k, v))  # [Hkv, 1, n, D]
        rows = q[0].reshape(len(k), -1, 1, q.shape[-1])
        return (rows @ k.swapaxes(-1, -2))[..., 0, :] * self.given.scale * LOG2_E, v


def _other_cut(item: Seen) -> bool:
    cuts = (item.alone, item.cut)
    return None not in cuts and cuts[0].arithmetic(0) != cuts[1].arithmetic(0)


def setting_of(given: Tensors, cut: Cut):
    """Return how our decode kernel computes request 0 under a cut, or None if nobody emulates it.

    A longer request would take minutes.
    """
    from labkernels.kernels.registry import kernels_of
    from labkernels.measure import error_budget

    kernel, _, tile = cut.kernel.partition(" ")
    if kernel not in kernels_of("decode", "cuda") or given.k.shape[1] > EMULATED_KEYS_MAX:
        return None
    t = first(given, 1)
    how = {"kernel": kernel, "tile": tile, "keys_per_split": cut.splits[0][0][1]}
    return error_budget.setting(t.q[:, 0].contiguous(), flashinfer.pages(t), **how)


def _bits(setting) -> np.ndarray:
    from labkernels.numerics.emulation.decode import emulate

    return emulate(setting.problem, setting.policy, setting.order)


EXPERIMENT = Experiment(
    "batch_bits",
    "Bits that change with the batch: which heads of a request, by library, seen and predicted",
    {DATA_FILE: schema.TABLES["batch_bits"]},
    cells,
    rows,
    renewed=(DATA_FILE,),
)
