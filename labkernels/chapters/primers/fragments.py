"""Finds by the CPU machine what the lanes of a warp hold and touch, and counts bank conflicts."""

from pathlib import Path

import numpy as np

from labkernels.budget import Line, array_bytes, fragment
from labkernels.chapters.primers import machine

HEADER = "fragments.cuh"
BANKS, BANK_BYTES, PHASE_LANES = 32, 4, 8  # an access of 16 bytes serves 8 lanes at once


def _kernel(name: str, registers: tuple[Line, ...], *tile: int) -> machine.SmallKernel:
    """Return a kernel of one warp; tile: rows and columns of 16-bit numbers in shared memory."""
    stored = [Line("the tile", array_bytes(*tile, dtype="fp16"))] if tile else []
    return machine.SmallKernel.of(HEADER, f"fragments::{name}", 32, registers, *stored)


_A, _B = Line("A", fragment(16, 16, bits=16)), Line("B", fragment(16, 8, bits=16))
SWIZZLED = _kernel("swizzled", (Line("a chunk, or a fragment", 4),), 16, 64)
PRODUCT = _kernel("product", (_A, _B, Line("D", fragment(16, 8))), 16, 16)
TWO_PRODUCTS = _kernel(
    "two_products", (_A, _B, Line("S", fragment(16, 16)), Line("O", fragment(16, 8)))
)
KERNELS = (SWIZZLED, PRODUCT, TWO_PRODUCTS)


def swizzled(folders: tuple[Path, ...] = (machine.FOLDER,)) -> dict[str, np.ndarray]:
    """Send a tile of 16 x 64 numbers through shared memory; return the result and the addresses.

    Shapes: numbers [16, 64]; stores and reads [4, 32], byte addresses of four instructions.
    """
    a = np.arange(16 * 64, dtype=np.uint16).reshape(16, 64)
    results = _run(SWIZZLED, a, np.zeros(1, np.uint16), (128 * 4, 8 * 32), folders)
    pairs = results["held"].view(np.uint16).reshape(4, 8, 4, 2, 2, 2)  # step, g, t, c, half, pair
    numbers = pairs.transpose(4, 1, 0, 3, 2, 5)  # the registers: (c, half) = (0, 0), (0, 1), ...
    touched = results["touched"].reshape(2, 4, 32).astype(np.int64)
    return {"numbers": numbers.reshape(16, 64), "stores": touched[0], "reads": touched[1]}


def product(
    a: np.ndarray, b: np.ndarray, folders: tuple[Path, ...] = (machine.FOLDER,)
) -> dict[str, np.ndarray]:
    """Multiply by one mma of a warp. Shapes: a [16, 16], b [16, 8] -> out [16, 8], held [32, 8]."""
    halves = [np.ascontiguousarray(x, np.float16).view(np.uint16) for x in (a, b.T)]
    results = _run(PRODUCT, *halves, (128, 1), folders)
    held = results["held"].view(np.float16).reshape(32, 8)
    return {"out": results["out"].reshape(16, 8), "held": held}


def two_products(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, folders: tuple[Path, ...] = (machine.FOLDER,)
) -> dict[str, np.ndarray]:
    """Return (q k^T) v with P in fp16 between. Shapes: q, k [16, 16]; v [16, 8] -> out [16, 8]."""
    halves = [np.ascontiguousarray(x, np.float16).view(np.uint16) for x in (q, k, v.T)]
    both = np.concatenate([halves[1].ravel(), halves[2].ravel()])
    results = _run(TWO_PRODUCTS, halves[0], both, (128, 1), folders)
    return {"out": results["out"].reshape(16, 8)}


def owners() -> dict[str, np.ndarray]:
    """Return which lane and place holds each element of A [16, 16] and D [16, 8] of an mma.

    Those of A are read from the registers of a matrix whose elements number themselves.
    """
    numbers = np.arange(256.0).reshape(16, 16)
    held = product(numbers, np.zeros((16, 8)))["held"].astype(int)
    a = np.empty((16, 16, 2), int)
    a.reshape(256, 2)[held.ravel()] = np.stack(np.divmod(np.arange(256), 8), axis=-1)
    return {"a": a, "d": _accumulator_owners()}


def _accumulator_owners() -> np.ndarray:
    """Return lane and register of each element of D, by the indices at which `product` stores D."""
    lane, register = np.divmod(np.arange(128), 4)
    rows, columns = lane // 4 + register // 2 * 8, lane % 4 * 2 + register % 2
    owner = np.empty((16, 8, 2), int)
    owner[rows, columns] = np.stack([lane, register], axis=-1)
    return owner


def ways(addresses: np.ndarray, n_bytes: int = 16) -> np.ndarray:
    """Return how many reads the busiest bank serves, per group of lanes that is served at once.

    A group with 1 has no conflict. Equal words count once, since one read serves all their lanes.
    Shapes: addresses [..., 32], the first byte of each lane -> [..., phases].
    """
    lanes = PHASE_LANES * 16 // n_bytes
    words = addresses[..., None] // BANK_BYTES + np.arange(n_bytes // BANK_BYTES)
    phases = words.reshape(*addresses.shape[:-1], -1, min(lanes, 32) * (n_bytes // BANK_BYTES))
    return np.apply_along_axis(_busiest, -1, phases)


def _busiest(words: np.ndarray) -> int:
    return int(np.bincount(np.unique(words) % BANKS, minlength=BANKS).max())


def _run(kernel: machine.SmallKernel, a, b, sizes, folders) -> dict[str, np.ndarray]:
    results = {
        "out": np.full(128, np.nan, np.float32),
        "held": np.zeros(sizes[0], np.uint32),
        "touched": np.zeros(sizes[1], np.uint32),
    }
    kernel.run(
        {"a": machine.aligned(a), "b": machine.aligned(b), **results},
        grid=(1,),
        writes=results,
        folders=folders,
    )
    return results
