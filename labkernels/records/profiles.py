"""What a kernel that misses its target spends its time on, from the rows of its counters."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from labkernels.records import recorded, store
from labkernels.records.store import Row

FILE = "missed_targets"
# experiments whose targets can be profiled, each with its operation
OPERATIONS = {
    "prefill": "prefill",
    "backward": "backward",
    "mla": "mla",
    "decode_tensor_cores": "decode",
    "decode_fp8": "decode",
    "decode_fp8_scales": "decode",
    "prefill_fp8": "prefill",
}
_CACHE = re.compile(r", (e\dm\d) cache(?:, scales per (\d+) keys)?")  # in a workload's label
# counters in percent of a part's peak, each with the part's name in a sentence
PARTS = {
    "tensor_pipe": "tensor pipe",
    "issue": "issue slots",
    "smem": "shared memory",
    "l2": "L2",
    "dram": "DRAM",
    "mufu": "exp2 unit",
}
_STALL = "stall_"
_WORKING = ("stall_selected", "stall_not_selected")  # the warp can issue, so it waits for nothing
_LARGEST_STALLS = 2


def counted(rows: Iterable[Row], workload: Mapping[str, Any], kernel: str) -> dict[str, float]:
    """Return the newest counters, by name, of the longest GPU kernel of an implementation.

    workload: the columns that say what was computed. The result is empty where nothing was counted.
    """
    rows = store.select(rows, {**workload, "kernel": kernel})
    functions: dict[str, dict[str, float]] = {}
    for row in recorded.newest_of_each(rows, ("kernel",)):
        if row["metric"] not in ("refused", "failed"):
            functions.setdefault(str(row["note"]), {})[str(row["metric"])] = float(row["value"])
    return max(functions.values(), key=lambda values: values["time"], default={})


def cache_of(label: str) -> tuple[str, int]:
    """Return the format of a workload's cache of 8 bits, "" for 16, and the keys of a scale or 0.

    >>> cache_of("57 x 8192, 32/8, d128, page 16, bf16, e4m3 cache, scales per 16 keys")
    ('e4m3', 16)
    """
    found = _CACHE.search(label)
    return (found[1], int(found[2] or 0)) if found else ("", 0)


def cache_column(kernel: str, kv_dtype: str, keys_per_scale: int) -> str:
    """Return the `kernel` cell of counters, whose other columns do not tell one cache from another.

    >>> cache_column("decode_mma_n8", "e4m3", 16)
    'decode_mma_n8, e4m3, scales per 16 keys'
    """
    words = (kernel, kv_dtype, f"scales per {keys_per_scale} keys" if keys_per_scale else "")
    return ", ".join(filter(None, words))


def peer_column(peer: str, operation: str) -> str:
    """Return the `kernel` cell of a peer's rows; one library has several operations."""
    return f"{peer} {operation}"


def stalls(values: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return what warps wait for and its share of their time in percent, the largest first."""
    every = {name: value for name, value in values.items() if name.startswith(_STALL)}
    total = sum(every.values())
    shares = [
        (name.removeprefix(_STALL).replace("_", " "), 100 * value / total)
        for name, value in every.items()
        if name not in _WORKING and value > 0
    ]
    return sorted(shares, key=lambda item: -item[1])


def sentence(values: Mapping[str, float]) -> str:
    """Say how busy the parts of the GPU are, and what the warps wait for."""
    busy = sorted((name for name in PARTS if name in values), key=lambda name: -values[name])
    words = [f"{PARTS[name]} {values[name]:.0f} %" for name in busy]
    waits = [f"{reason} {share:.0f} %" for reason, share in stalls(values)[:_LARGEST_STALLS]]
    return f"{', '.join(words)}; waits for {', '.join(waits)}" if waits else ", ".join(words)
