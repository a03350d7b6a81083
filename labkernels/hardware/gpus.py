"""GPUs as frozen `Gpu` records, read from gpus.toml."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from labkernels.units import require_choice


@dataclass(frozen=True)
class Fact:
    """One number about a GPU with its unit, its source, and the day of the last check."""

    value: int | float
    unit: str
    source: str
    date: str


@dataclass(frozen=True)
class Gpu:
    """One GPU part: limits of its compute capability, then sizes and rates of the product.

    Units: as the name's suffix says; *_per_clk_per_sm are results per clock and SM.
    Source: `fact(key, field)` gives the document behind each number.
    """

    key: str
    name: str
    arch: str
    sm_count: int
    registers_per_sm: int
    registers_per_thread_max: int
    register_allocation_unit_per_warp: int
    warp_allocation_granularity: int
    smem_per_sm_bytes: int
    smem_per_block_max_bytes: int
    smem_reserved_per_block_bytes: int
    smem_allocation_unit_bytes: int
    threads_per_block_max: int
    threads_per_sm_max: int
    warps_per_sm_max: int
    blocks_per_sm_max: int
    l2_bytes: int
    dram_bytes: int
    dram_bytes_per_s: float
    boost_clock_hz: float
    tensor_clock_hz: float
    fp32_fma_per_clk_per_sm: int
    fp32_flops: float
    mufu_per_clk_per_sm: int
    tensor_flops_per_clk_per_sm: int
    tensor_fp32_accumulate_rate: float
    tensor_fp16_flops: float
    nvlink_bytes_per_s: float | None
    measured_copy_bytes_per_s: float | None
    measured_bf16_matmul_flops: float | None
    measured_mma_sync_share: float | None

    @property
    def arch_number(self) -> int:
        """The architecture as a number that grows: 90 of sm_90."""
        return int(self.arch.removeprefix("sm_"))

    @property
    def compile_arch(self) -> str:
        """The architecture to compile for: the one with wgmma, TMA or tcgen05 where it exists."""
        return f"{self.arch}a" if self.arch in ("sm_90", "sm_100") else self.arch


_NOT_OF_ALL = {f.name for f in fields(Gpu) if f.type == float | None}
_IDENTITY = {"key", "name", "arch"}


def _load(path: Path) -> tuple[dict[str, Gpu], dict[str, dict[str, Fact]]]:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    sources = table["sources"]
    gpus, facts = {}, {}
    for key, entry in table["gpu"].items():
        product = {field: value for field, value in entry.items() if field not in _IDENTITY}
        rows = table["every_arch"] | table["arch"][entry["arch"]] | product
        # the tensor clock is the boost clock unless the vendor quotes its tensor peak at another
        rows.setdefault("tensor_clock_hz", rows["boost_clock_hz"])
        facts[key] = {
            field: Fact(row["value"], row["unit"], sources[row["source"]], row["date"].isoformat())
            for field, row in rows.items()
        }
        # each field has its own type; None if it was not measured, or there is no NVLink
        values: dict[str, Any] = dict.fromkeys(_NOT_OF_ALL)
        values |= {field: known.value for field, known in facts[key].items()}
        gpus[key] = Gpu(key, entry["name"], entry["arch"], **values)
    return gpus, facts


ARCH_MIN = 80  # minimum for the lab's kernels: asynchronous copies and bf16 tensor cores start here
_ALL, _FACTS = _load(Path(__file__).with_name("gpus.toml"))
# The parts that the kernels run on; `gpu` and `fact` also know older parts.
GPUS = {key: known for key, known in _ALL.items() if known.arch_number >= ARCH_MIN}
# The architectures that kernels are compiled and reported for. sm_87 is sm_86 with more shared
# memory, and ptxas gives a kernel the same registers.
ARCHS = tuple(dict.fromkeys(g.compile_arch for g in GPUS.values() if g.arch != "sm_87"))


def gpu(key: str, name: str = "gpu") -> Gpu:
    """Return the GPU with a key such as "h200"; name: the argument with the key, for the error.

    Raises: ValueError listing the keys if there is none.

    >>> gpu("h200").sm_count, gpu("h200").smem_per_sm_bytes
    (132, 233472)
    """
    require_choice(name, key, _ALL)
    return _ALL[key]


def fact(key: str, field: str) -> Fact:
    """Return the value of a GPU's field with its unit, source and date.

    Raises: ValueError listing what is known if the GPU or the field is not.

    >>> found = fact("h200", "dram_bytes_per_s")
    >>> found.value, found.unit, found.date
    (4800000000000.0, 'bytes/s', '2026-11-21')
    """
    known = _FACTS[gpu(key).key]
    if field not in known:
        raise ValueError(f"field = {field!r}, allowed for {key}: {', '.join(known)}")
    return known[field]


def by_arch(arch: str) -> list[Gpu]:
    """Return the GPUs of an architecture, given as "sm_90" or as it is compiled for, "sm_90a".

    Raises: ValueError listing the architectures if no GPU has it.
    """
    found = [g for g in _ALL.values() if arch in (g.arch, g.compile_arch)]
    if not found:
        allowed = dict.fromkeys(name for g in _ALL.values() for name in (g.arch, g.compile_arch))
        raise ValueError(f"arch = {arch!r}, allowed: {', '.join(allowed)}")
    return found
