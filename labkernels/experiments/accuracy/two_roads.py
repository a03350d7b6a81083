"""Compute the last tokens of 16 samples by a whole prefill and from a growing cache.

The experiment records which bits differ, and the times. A road is a way to compute an output.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkernels.chapters import two_roads
from labkernels.chapters.two_roads import Samples
from labkernels.experiments import rows as measured
from labkernels.experiments.accuracy import two_roads_peers as peers
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.measure import timing
from labkernels.measure.peers import flash_attention_2, flashinfer, peer
from labkernels.numerics import metrics
from labkernels.numerics.arrays import as_float64
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/two_roads.csv"
HEADS_FILE = "accuracy/two_roads_heads.parquet"
QUICK = (300, 257, 129, 100)


@dataclass(eq=False)
class Found:
    """Outputs of every road by name, the road that each is compared with, and why others lack one.

    alone: how many channels of the first sample change if it is computed alone.
    """

    outs: dict[str, Any] = field(default_factory=dict)
    against: dict[str, str] = field(default_factory=dict)
    backend: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    alone: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, backend: str, against: str, compute: Callable[[], object]) -> None:
        """Keep a road's output, or the reason why it has none."""
        self.backend[name] = backend
        try:
            self.outs[name] = compute()
            self.against[name] = against
        except Exception as error:  # each library has its own error classes
            self.reasons[name] = peer.one_line(error)


def cells(options: Options) -> Iterator[Cell]:
    """Yield one cell, since its outputs are compared; `quick` takes fewer and shorter samples."""
    lengths = QUICK if options.quick else two_roads.LENGTHS
    yield Cell(f"{len(lengths)} samples of up to {max(lengths)} keys", lengths)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Compute every road on this machine's GPU, and time the lab's roads."""
    given = two_roads.samples(cell.of, seed=recording.options.seed, device=recording.device)
    found = Found()
    with recording.sampling():
        our_outputs(given, found)
        recording.progress(f"{len(found.outs)} roads of ours")
        peer_outputs(given, found)
        flash_attention_outputs(given, found)
        times = _times(given, recording.options.repeats)
    recording.tell(f"{len(found.outs)} roads; refused: {found.reasons}")
    yield from ((DATA_FILE, row) for row in rows_of(given, found, times))
    yield from ((HEADS_FILE, row) for row in head_rows(given, found))


def our_outputs(given: Samples, found: Found) -> None:
    """Run the lab's roads, each compared with the whole prefill of the same tile."""
    one = given.one(0)
    whole = two_roads.VARLEN.name
    found.add(whole, "cuda", whole, lambda: two_roads.varlen(given, whole=True))
    for road in (two_roads.KVCACHE, two_roads.SPLIT, two_roads.ALIGNED):
        found.add(road.name, "cuda", whole, lambda r=road: two_roads.kvcache(given, r).out)
    fixed = two_roads.VARLEN_FIXED
    found.add(fixed.name, "cuda", fixed.name, lambda: two_roads.varlen(given, fixed, whole=True))
    found.add(
        two_roads.KVCACHE_FIXED.name,
        "cuda",
        fixed.name,
        lambda: two_roads.kvcache(given, two_roads.KVCACHE_FIXED).out,
    )
    for road in (two_roads.KVCACHE, two_roads.ALIGNED, two_roads.KVCACHE_FIXED, two_roads.CHOSEN):
        among, alone = (two_roads.kvcache(x, road).out[:1] for x in (given, one))
        found.alone[road.name] = int(two_roads.differing(among, alone).sum())
        found.backend[road.name] = "cuda"


def peer_outputs(given: Samples, found: Found) -> None:
    """Run torch's and FlashInfer's roads, each compared with the library's own whole prefill."""
    whole = "torch flash, whole"
    found.add(whole, "torch", whole, lambda: peers.torch_whole(given))
    found.add("torch flash, last", "torch", whole, lambda: peers.torch_last(given))
    alone, copies = (peers.torch_last_of_copies(given, n)[:1] for n in (1, 16))
    found.alone["torch flash, last"] = int(two_roads.differing(copies, alone).sum())
    if flashinfer.missing() is not None:
        return
    whole = "flashinfer prefill fa2"
    found.add(whole, "flashinfer", whole, lambda: peers.flashinfer_whole(given))
    ways = {
        "flashinfer decode, CUDA cores": {"tensor_cores": False},
        "flashinfer decode, fa2": {"tensor_cores": True},
        "flashinfer decode, fa2, fixed_split_size": {"tensor_cores": True, "fixed_split_size": 64},
        "flashinfer decode, fa2, disable_split_kv": {
            "tensor_cores": True,
            "disable_split_kv": True,
        },
    }
    among = [_full_cache(x) for x in (given, given.one(0))]
    for name, how in ways.items():
        found.add(
            name,
            "flashinfer",
            whole,
            lambda how=how: peers.flashinfer_step(given, among[0], **how)().clone(),
        )
        if name in found.outs:
            alone = peers.flashinfer_step(given.one(0), among[1], **how)()
            found.alone[name] = int(two_roads.differing(found.outs[name][:1], alone).sum())


def flash_attention_outputs(given: Samples, found: Found) -> None:
    """Run FlashAttention-2's roads, on the samples and with scores that lead with recent keys."""
    if flash_attention_2.missing() is not None:
        return
    version = flash_attention_2.version()
    led = two_roads.with_recent_lead(given, two_roads.LEAD)
    for inputs, words in ((given, ""), (led, f", lead {two_roads.LEAD}")):
        whole = f"{version} varlen{words}"
        found.add(whole, "flash-attn", whole, lambda x=inputs: peers.flash_attention_whole(x))
        for knob, splits in (("", 0), (", num_splits=1", 1)):
            found.add(
                f"{version} kvcache{knob}{words}",
                "flash-attn",
                whole,
                lambda x=inputs, n=splits: peers.flash_attention_last(x, num_splits=n),
            )
    name = f"{version} kvcache"
    if name in found.outs:
        alone = peers.flash_attention_last(given.one(0))
        found.alone[name] = int(two_roads.differing(found.outs[name][:1], alone).sum())


def _full_cache(given: Samples):
    """Return a cache that also holds the last tokens."""
    from labkernels import ops

    cache = two_roads.cache_before_the_last(given)
    _, k, v = (x[given.last_tokens] for x in given.qkv.unbind(1))
    ops.append(cache, k, v, two_roads.sums([1] * len(given.lengths), k.device))
    return cache


def _times(given: Samples, repeats: int) -> dict[str, tuple[timing.Quartiles, object]]:
    """Return device times of one token's step on the lab's roads, and of the whole prefills."""
    steps = {
        road.name: two_roads.kvcache_step(given, road)
        for road in (
            two_roads.KVCACHE,
            two_roads.SPLIT,
            two_roads.ALIGNED,
            two_roads.KVCACHE_FIXED,
            two_roads.CHOSEN,
        )
    }
    steps |= {
        road.name: two_roads.varlen_step(given, road)
        for road in (two_roads.VARLEN, two_roads.VARLEN_FIXED)
    }
    replays = {name: timing.capture(run).replay for name, (run, _) in steps.items()}
    took = timing.time_interleaved(replays, repeats=repeats)
    return {name: (took[name], plan) for name, (_, plan) in steps.items()}


def rows_of(given: Samples, found: Found, times: Mapping[str, tuple]) -> list[Row]:
    """Return each road's rows: differences from its reference, alone and in the batch; times."""
    base = {
        "batch": len(given.lengths),
        "kv_len": max(given.lengths),
        "q_heads": two_roads.HEADS,
        "kv_heads": two_roads.HEADS,
        "head_dim": two_roads.HEAD_DIM,
        "page_size": two_roads.PAGE_SIZE,
        "dtype": two_roads.DTYPE,
    }
    rows = []
    for name, out in found.outs.items():
        other = found.outs[found.against[name]]
        own = base | {"kernel": name, "backend": found.backend[name]}
        own |= {"note": f"against {found.against[name]}"}
        different = two_roads.differing(out, other)
        gap = np.abs(metrics.difference(as_float64(out), as_float64(other)))
        for metric, statistic, value in (
            ("different_channels", "total", int(different.sum())),
            ("equal_heads", "total", int((different == 0).sum())),
            ("difference", "max_abs", float(gap.max())),
            ("difference", "mean", float(gap.mean())),
        ):
            rows.append(measured.row(own, metric, statistic, value, "1"))
    for name, count in found.alone.items():
        own = base | {"kernel": name, "backend": found.backend[name]}
        rows.append(measured.row(own, "different_alone", "total", count, "1"))
    for name, words in found.reasons.items():
        own = base | {"kernel": name, "backend": found.backend[name]}
        rows.append(measured.reason_row(own, "refused", words))
    for name, (took, plan) in times.items():
        own = base | {"kernel": name, "backend": "cuda", "tile": plan.tile}
        rows += measured.graph_rows(own, took)
        for fact in ("splits", "blocks"):
            rows.append(measured.row(own, fact, "exact", getattr(plan, fact), fact))
    return rows


def head_rows(given: Samples, found: Found) -> list[Row]:
    """Return how many channels of each sample and head differ."""
    rows = []
    for name, out in found.outs.items():
        against = found.against[name]
        if against == name:
            continue
        different = two_roads.differing(out, found.outs[against])
        gap = np.abs(metrics.difference(as_float64(out), as_float64(found.outs[against]))).max(-1)
        rows += [
            {
                "road": name,
                "against": against,
                "sample": sample,
                "head": head,
                "kv_len": given.lengths[sample],
                "different": int(different[sample, head]),
                "max_abs": float(gap[sample, head]),
            }
            for sample, head in np.ndindex(different.shape)
        ]
    return rows


EXPERIMENT = Experiment(
    "two_roads",
    "Tokens by whole prefill and from a cache: which bits differ, alone and in a batch, and times",
    {DATA_FILE: schema.MEASUREMENTS, HEADS_FILE: schema.TABLES["two_roads_heads"]},
    cells,
    rows,
    renewed=(HEADS_FILE,),
)
