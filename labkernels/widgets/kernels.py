"""The kernels that a page runs: each with its WebAssembly, its launches and its checksum."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from labkernels.experiments.accuracy import bits
from labkernels.kernels.cuda_kernel import CudaKernel
from labkernels.kernels.operation import BitCase, operations
from labkernels.kernels.registry import discover
from labkernels.records import store
from labkernels.widgets.launches import module, page_launch, rounding

# Each takes a few seconds to compile, and prefill_wgmma takes half a minute.
_DECODES = (("fp16", 64), ("fp16", 128), ("bf16", 128))
OFFERED = {
    "decode_mma": _DECODES,
    "decode_fma": _DECODES,
    "decode_mma_n8": _DECODES,
    "prefill_mma": (("fp16", 64),),
    "prefill_wgmma_basic": (("fp16", 64),),
    "prefill_wgmma": (("fp16", 64),),
}
GROUP = 4  # query heads per KV head of the decodes
KEYS = {"decode": (1, 64, 256, 1024), "prefill": (16, 64, 256)}
RECORDED = "recorded"  # the name of the case whose checksum lies in data/
_COMPILERS = 2


@dataclass(frozen=True)
class Offer:
    """A compiled kernel of a page, and its cases by name; the recorded one comes first."""

    kernel: CudaKernel
    recorded: BitCase

    @property
    def name(self) -> str:
        """The name of the page's file, such as "decode_mma.fp16.d64"."""
        instance = self.recorded.instance
        return f"{instance.kernel}.{instance.dtype}.d{instance.head_dim}"

    @property
    def checksum(self) -> str:
        """SHA-256 of what an H200 computed in the recorded case with seed 0.

        Raises: LookupError if data/ has no such row, or several.
        """
        operation = operations()[self.kernel.operation]
        wanted = bits.row(operation, self.recorded, "", 0)
        same = ("kernel", "tile", "policy", "q_heads", "head_dim", "page_size", "dtype", "metric")
        same += ("causal",) if "causal" in wanted else ()
        found = [
            row["note"].removeprefix("sha256 ")
            for row in store.read(bits.data_file(operation.name))
            if all(str(row[name]) == str(wanted[name]) for name in same)
        ]
        if len(found) != 1:
            raise LookupError(f"{self.name} has {len(found)} recorded checksums, allowed: 1")
        return found[0]

    def cases(self) -> Iterator[tuple[str, BitCase]]:
        """Yield names and runs: the recorded one, then single requests of some keys."""
        yield RECORDED, self.recorded
        w, decode = self.recorded.workload, self.kernel.operation == "decode"
        for keys in KEYS[self.kernel.operation]:
            if decode:
                workload = replace(w, kv_lens=(keys,), q_heads=2 * GROUP, kv_heads=2)
            else:
                workload = replace(w, q_lens=(keys,), kv_lens=(keys,), causal=True)
            yield str(keys), replace(self.recorded, workload=workload)

    def asset(self) -> dict[str, Any]:
        """Return all that a page needs to run the kernel; the first call compiles for seconds."""
        launches = {name: page_launch(case) for name, case in self.cases()}
        specializations = {launch.specialization for launch in launches.values()}
        (made,) = specializations
        how = rounding(self.recorded.instance)
        sums = {RECORDED: self.checksum}
        return {
            "module": module(made),
            "cases": {
                name: {**launch.plan, "rounding": how, "sha256": sums.get(name)}
                for name, launch in launches.items()
            },
        }


def offers() -> tuple[Offer, ...]:
    """Return every kernel of the pages, in the order in which they are offered."""
    return tuple(
        _offer(name, dtype, head_dim)
        for name, variants in OFFERED.items()
        for dtype, head_dim in variants
    )


def _offer(name: str, dtype: str, head_dim: int) -> Offer:
    kernel = discover()[name]

    def is_it(case: BitCase) -> bool:
        w, instance = case.workload, case.instance
        alike = (instance.dtype, instance.head_dim) == (dtype, head_dim)
        if kernel.operation == "decode":
            plain = instance.policy == kernel.policies[0]
            whole = case.options["keys_per_split"] >= max(w.kv_lens)
            return alike and plain and whole and w.q_heads == GROUP * w.kv_heads
        return alike and w.page_size is None

    cases = operations()[kernel.operation].bit_cases(kernel)
    return Offer(kernel, next(case for case in cases if is_it(case)))


def assets(of: tuple[Offer, ...]) -> Mapping[str, str]:
    """Return the text of the assets by name, compiled side by side."""
    with ThreadPoolExecutor(_COMPILERS) as pool:
        longest_first = of[::-1]
        made = pool.map(lambda offer: json.dumps(offer.asset()), longest_first)
        return {offer.name: text for offer, text in zip(longest_first, made, strict=True)}
