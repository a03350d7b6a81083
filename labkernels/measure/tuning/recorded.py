"""Compare recorded searches with the model: the expected and the measured time of each tile."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from labkernels import hardware
from labkernels.budget import TileTime
from labkernels.kernels.kernel import Instance
from labkernels.kernels.prefill.workload import Prefill
from labkernels.measure.tuning import search
from labkernels.measure.tuning.search import Candidate
from labkernels.records.store import Row

_SEARCH = ("kernel", "head_dim", "causal", "batch", "q_len", "kv_len", "q_heads", "kv_heads")


@dataclass(frozen=True)
class Tuned:
    """One tile of a recorded search; registers per thread, measured_s in seconds."""

    kernel: str
    head_dim: int
    causal: bool
    tile: str
    listed: bool
    registers: int
    blocks_per_sm: int
    expected: TileTime
    measured_s: float


def recorded(rows: Iterable[Row], *, gpu: hardware.Gpu) -> list[Tuned]:
    """Return each measured tile that its kernel still has, with the time that the model expects."""
    facts: dict[tuple, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row["statistic"] in ("median", "exact") and row["metric"] != "failed":
            key = (*(row[name] for name in _SEARCH), row["dtype"], row["tile"])
            facts[key][row["metric"]] = row["value"]
    found = (_tuned(key, known, gpu) for key, known in facts.items())
    return [tile for tile in found if tile is not None]


@cache
def _instances(kernel: str, workload: Prefill) -> dict[str, Instance]:
    return {one.tile.label: one for one in search.space(search.tunable(kernel), workload)}


def _tuned(key: tuple, known: dict[str, float], gpu: hardware.Gpu) -> Tuned | None:
    kernel, head_dim, causal, batch, q_len, kv_len, q_heads, kv_heads, dtype, label = key
    lengths = ((q_len,) * batch, (kv_len,) * batch)
    workload = Prefill(*lengths, q_heads, kv_heads, head_dim, causal=causal, dtype=dtype)
    spec, instances = search.tunable(kernel), _instances(kernel, workload)
    if label not in instances:
        return None
    candidate = Candidate(
        instances[label],
        int(known["registers"]),
        int(known["smem_bytes"]),
        int(known["blocks_per_sm"]),
    )
    return Tuned(
        kernel,
        head_dim,
        causal,
        label,
        label in search.in_list(spec, workload),
        candidate.registers,
        candidate.blocks_per_sm,
        search.expected_time(candidate, workload, gpu),
        known["time"],
    )
