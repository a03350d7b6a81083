"""The last tokens of 16 samples by a whole prefill and from a growing cache: bits and times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments import _decode_rows as decode_rows
from labkernels.measure import device, peers, roads, roads_peers, timing
from labkernels.measure.accuracy import as_float64
from labkernels.measure.roads import Samples
from labkernels.numerics import metrics
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row

NAME = "two_roads"
TITLE = "One attention by two roads: which bits differ, alone and among others, and what it costs"
DATA_FILE = "two_roads.csv"
HEADS_FILE = "two_roads_heads.csv"
QUICK = (300, 257, 129, 100)


@dataclass(eq=False)
class Found:
    """Outputs of every road by name, what each is held against, and words for those without."""

    outs: dict[str, object] = field(default_factory=dict)
    against: dict[str, str] = field(default_factory=dict)
    backend: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    alone: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, backend: str, against: str, compute: Callable[[], object]) -> None:
        """Keep a road's output, or the words with which it refuses."""
        self.backend[name] = backend
        try:
            self.outs[name] = compute()
            self.against[name] = against
        except Exception as error:  # each library has error classes of its own
            self.words[name] = peers.one_line(error)


def run(options: Options) -> Outcome:
    """Compute every road on this machine's GPU, time ours, and write both files.

    Raises: ValueError if there is no GPU or no commit, or a quick run would write to data/.
    """
    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/ and quick is on; allowed: --quick with --out FOLDER")
    started, commit, facts = datetime.now(UTC), commit_text(options), device.facts()
    given = roads.samples(
        QUICK if options.quick else roads.LENGTHS, seed=options.seed, device="cuda"
    )
    found = Found()
    with device.sampling() as reading:
        our_outputs(given, found)
        options.progress(f"{len(found.outs)} roads of ours")
        peer_outputs(given, found)
        options.progress(f"{len(found.outs)} roads; refused: {found.words}")
        times = _times(given, options.repeats)
    origin = provenance.collect(
        {**facts, **reading.sensors},
        seed=options.seed,
        repeats=options.repeats,
        commit=commit,
        started=started,
    )
    rows = [origin | row for row in rows_of(given, found, times)]
    heads = [{"started_utc": origin["started_utc"]} | row for row in head_rows(given, found)]
    paths = options.out / DATA_FILE, options.out / HEADS_FILE
    put = store.replace if options.replace else store.append
    put(paths[0], rows, schema.MEASUREMENTS)
    store.replace(paths[1], heads, schema.ROADS)
    datapackage.write(options.out)
    return Outcome(len(rows) + len(heads), paths)


def our_outputs(given: Samples, found: Found) -> None:
    """Our roads, each against the whole prefill that its tile belongs to."""
    one = given.one(0)
    whole = roads.VARLEN.name
    found.add(whole, "cuda", whole, lambda: roads.varlen(given, whole=True))
    for road in (roads.KVCACHE, roads.SPLIT, roads.ALIGNED):
        found.add(road.name, "cuda", whole, lambda r=road: roads.kvcache(given, r).out)
    fixed = roads.VARLEN_FIXED
    found.add(fixed.name, "cuda", fixed.name, lambda: roads.varlen(given, fixed, whole=True))
    found.add(
        roads.KVCACHE_FIXED.name,
        "cuda",
        fixed.name,
        lambda: roads.kvcache(given, roads.KVCACHE_FIXED).out,
    )
    for road in (roads.KVCACHE, roads.ALIGNED, roads.KVCACHE_FIXED, roads.CHOSEN):
        among, alone = (roads.kvcache(x, road).out[:1] for x in (given, one))
        found.alone[road.name] = int(roads.differing(among, alone).sum())
        found.backend[road.name] = "cuda"


def peer_outputs(given: Samples, found: Found) -> None:
    """torch's and FlashInfer's roads, each against its own whole prefill."""
    whole = "torch flash, whole"
    found.add(whole, "torch", whole, lambda: roads_peers.torch_whole(given))
    found.add("torch flash, last", "torch", whole, lambda: roads_peers.torch_last(given))
    alone, copies = (roads_peers.torch_last_of_copies(given, n)[:1] for n in (1, 16))
    found.alone["torch flash, last"] = int(roads.differing(copies, alone).sum())
    if peers.flashinfer_missing() is not None:
        return
    whole = "flashinfer prefill fa2"
    found.add(whole, "flashinfer", whole, lambda: roads_peers.flashinfer_whole(given))
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
            lambda how=how: roads_peers.flashinfer_step(given, among[0], **how)().clone(),
        )
        if name in found.outs:
            alone = roads_peers.flashinfer_step(given.one(0), among[1], **how)()
            found.alone[name] = int(roads.differing(found.outs[name][:1], alone).sum())


def _full_cache(given: Samples):
    """A cache that holds the last tokens too."""
    from labkernels import ops

    cache = roads.cache_before_the_last(given)
    _, k, v = (x[given.last_tokens] for x in given.qkv.unbind(1))
    ops.append(cache, k, v, roads.sums([1] * len(given.lengths), k.device))
    return cache


def _times(given: Samples, repeats: int) -> dict[str, tuple[timing.Quartiles, object]]:
    """Device times of a step of one token on each road of ours, and of the whole prefills."""
    steps = {
        road.name: roads.kvcache_step(given, road)
        for road in (
            roads.KVCACHE,
            roads.SPLIT,
            roads.ALIGNED,
            roads.KVCACHE_FIXED,
            roads.CHOSEN,
        )
    }
    steps |= {
        road.name: roads.varlen_step(given, road) for road in (roads.VARLEN, roads.VARLEN_FIXED)
    }
    replays = {name: timing.capture(run).replay for name, (run, _) in steps.items()}
    took = timing.time_interleaved(replays, repeats=repeats)
    return {name: (took[name], plan) for name, (_, plan) in steps.items()}


def rows_of(given: Samples, found: Found, times: Mapping[str, tuple]) -> list[Row]:
    """Differences of each road from what it is held against, alone and among others; times."""
    base = {
        "experiment": NAME,
        "batch": len(given.lengths),
        "kv_len": max(given.lengths),
        "q_heads": roads.HEADS,
        "kv_heads": roads.HEADS,
        "head_dim": roads.HEAD_DIM,
        "page_size": roads.PAGE_SIZE,
        "dtype": roads.DTYPE,
    }
    rows = []
    for name, out in found.outs.items():
        other = found.outs[found.against[name]]
        own = base | {"kernel": name, "backend": found.backend[name]}
        own |= {"note": f"against {found.against[name]}"}
        different = roads.differing(out, other)
        gap = np.abs(metrics.difference(as_float64(out), as_float64(other)))
        for metric, statistic, value in (
            ("different_channels", "total", int(different.sum())),
            ("equal_heads", "total", int((different == 0).sum())),
            ("difference", "max_abs", float(gap.max())),
            ("difference", "mean", float(gap.mean())),
        ):
            rows.append(own | _cell(metric, statistic, value))
    for name, count in found.alone.items():
        own = base | {"kernel": name, "backend": found.backend[name]}
        rows.append(own | _cell("different_alone", "total", count))
    for name, words in found.words.items():
        own = base | {"kernel": name, "backend": found.backend[name], "note": words}
        rows.append(own | _cell("refused", "exact", 1))
    for name, (took, plan) in times.items():
        own = base | {"kernel": name, "backend": "cuda", "tile": plan.tile}
        rows += decode_rows.graph_rows(own, took)
        for fact in ("splits", "blocks"):
            rows.append(own | _cell(fact, "exact", getattr(plan, fact), unit=fact))
    return rows


def _cell(metric: str, statistic: str, value: float, unit: str = "1") -> Row:
    return {"metric": metric, "statistic": statistic, "value": value, "unit": unit}


def head_rows(given: Samples, found: Found) -> list[Row]:
    """How many channels of each sample and head differ."""
    rows = []
    for name, out in found.outs.items():
        against = found.against[name]
        if against == name:
            continue
        different = roads.differing(out, found.outs[against])
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
