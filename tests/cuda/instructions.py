"""The instructions whose arithmetic was recorded, and how a probe runs each on tiles of a and b."""

import ctypes
from dataclasses import dataclass
from itertools import product

HEADER = "lab/probes.cuh"
_CPP = {name: f"lab::{name}" for name in ("bf16", "tf32", "e4m3", "e5m2")} | {"fp16": "lab::f16"}
_K = {"fp16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}
_SYNC_THREADS, _SYNC_TILES_PER_BLOCK = 256, 8  # lab::probe_threads, lab::probe_tiles
_WGMMA_THREADS = 128  # lab::wgmma_probe_threads


class MmaParams(ctypes.Structure):
    """lab::MmaParams."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in "abcd")


@dataclass(frozen=True)
class Instruction:
    """One tensor-core instruction: its operands, and the probe that issues it once per tile.

    widened: the GPU has no unit for the 8-bit inputs, and converts them to fp16 first. Units: m, n
    and k count a tile's rows, its columns, and the products per output.
    """

    name: str
    fmt: str
    out: str
    m: int
    n: int
    k: int
    probe: str
    threads: int
    tiles_per_block: int
    smem_bytes: int
    widened: bool = False


def _sync(fmt: str, out: str) -> Instruction:
    k = _K[fmt]
    return Instruction(
        f"mma.sync.m16n8k{k}.{out}.{fmt}",
        *(fmt, out, 16, 8, k),
        probe=f"lab::probe_mma<{_CPP[fmt]}, {_register(out)}>",
        threads=_SYNC_THREADS,
        tiles_per_block=_SYNC_TILES_PER_BLOCK,
        smem_bytes=0,
        widened=fmt in ("e4m3", "e5m2"),
    )


def _wgmma(fmt: str, out: str) -> Instruction:
    return Instruction(
        f"wgmma.m64n64k{_K[fmt]}.{out}.{fmt}",
        *(fmt, out, 64, 64, _K[fmt]),
        probe=wgmma_probe(fmt, out),
        threads=_WGMMA_THREADS,
        tiles_per_block=1,
        smem_bytes=wgmma_smem_bytes(),
    )


def wgmma_probe(
    fmt: str,
    out: str = "fp32",
    *,
    majors: tuple[str, str] = ("k", "k"),
    swizzle: str = "none",
    a_in_registers: bool = False,
    columns: int = 64,
    steps: int = 1,
) -> str:
    """Return the C++ name of lab::probe_wgmma for tiles with this layout in shared memory."""
    a, b = (f"lab::Major::{major}" for major in majors)
    registers = str(a_in_registers).lower()
    return (
        f"lab::probe_wgmma<{_CPP[fmt]}, {_register(out)}, {a}, {b}, "
        f"lab::Swizzle::{swizzle}, {registers}, {columns}, {steps}>"
    )


def wgmma_smem_bytes(columns: int = 64, steps: int = 1) -> int:
    """Return sizeof(lab::WgmmaSmem): per step 32 bytes of K, for 64 rows of a and those of b.

    The columns of the product, which are rows of b in shared memory, fill up to multiples of 64.
    """
    return (64 + -(-columns // 64) * 64) * 32 * steps


def _register(out: str) -> str:
    return {"fp32": "float", "fp16": "lab::f16"}[out]


INSTRUCTIONS = tuple(
    make(fmt, out)
    for make, (fmt, out) in product(
        (_sync, _wgmma), [(fmt, "fp32") for fmt in _K] + [("fp16", "fp16")]
    )
)
