"""The case's gain on the GPU of its author: the chapter's criterion, and what it leaves open.

Profiler and grid agree on an SM count: 456 blocks are 0.60 waves of 7 blocks on each of 108 SMs,
and 2.11 waves of 2. The GPU was therefore an A100, with 40 or 80 GB, whose memories differ in
their rates.
"""

from dataclasses import replace
from typing import Any

from labkernels import budget, hardware
from labkernels.kernels.decode.workload import Decode

REPORTED_S = {"on": 1.276e-3, "off": 1.595e-3}  # flashinfer issue 703
BLOCKS = 57 * 8  # a block for each request and KV head, in both of its kernels
BLOCKS_PER_SM = {"on": 2, "off": 7}  # by 182 and 66 registers per thread
A100_40_GB_BYTES_PER_S = 1.555e12  # NVIDIA A100 data sheet, SXM4 40 GB
CASE = Decode.uniform(57, 8192, q_heads=32, kv_heads=8, head_dim=128, dtype="fp16")


def on_the_threads_gpu(slots_per_fma: float) -> list[dict[str, Any]]:
    """Return a row per A100: times of memory and issue slots, expected gain, reported gain.

    By the criterion, a decode with tensor cores takes the memory's time, and without them the
    longer of memory and slots. even: the blocks share the SMs evenly. busiest: an SM with 5 of the
    456 blocks sets the time.
    Units: times in ms, rates in percent of the memory's peak.
    """
    large = hardware.gpu("a100")
    small = replace(large, name="NVIDIA A100 SXM4 40 GB", dram_bytes_per_s=A100_40_GB_BYTES_PER_S)
    rows = []
    for gpu in (small, large):
        memory_s = budget.least_time(CASE, gpu, tensor_cores=True, mma_rows=16).memory_s
        even_s = budget.issue_time(CASE, gpu, slots_per_fma=slots_per_fma)
        busiest_s = budget.issue_time(CASE, gpu, slots_per_fma=slots_per_fma, blocks=BLOCKS)
        share = {way: 100 * memory_s / time_s for way, time_s in REPORTED_S.items()}
        rows.append(
            {
                "GPU": gpu.name,
                "memory, ms": 1e3 * memory_s,
                "slots, even, ms": 1e3 * even_s,
                "slots, busiest, ms": 1e3 * busiest_s,
                "gain, even": max(memory_s, even_s) / memory_s,
                "gain, busiest": max(memory_s, busiest_s) / memory_s,
                "gain, reported": REPORTED_S["off"] / REPORTED_S["on"],
                "on, % of the peak": share["on"],
                "off, % of the peak": share["off"],
            }
        )
    return rows


def last_wave() -> dict[str, float]:
    """Return the percentage of all SMs' time in which they have blocks, tensor cores on and off.

    All blocks are taken to last equally long. The kernel with tensor cores runs its blocks in whole
    waves. The blocks of the other kernel run at once, and SMs with one block fewer finish earlier.
    """
    sms = hardware.gpu("a100").sm_count
    rounds = {way: -(-BLOCKS // (held * sms)) * held for way, held in BLOCKS_PER_SM.items()}
    rounds["off"] = min(rounds["off"], -(-BLOCKS // sms))
    return {way: 100 * BLOCKS / (sms * each) for way, each in rounds.items()}
