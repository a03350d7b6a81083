"""How sm_90 computes ex2.approx.ftz.f32: a table of 64 parabolas, evaluated in fixed point.

x is cut to 23 fraction bits, toward zero: |x| = n + f / 2^23. For x >= 0 the result is
2^n (1 + y(f) / 2^23). For x < 0 every bit of n and f is complemented: 2^(-n-1) (1 + y(2^23-1-f) /
2^23), except that f = 0 gives 2^-n. The upper 6 bits of f choose a parabola, the lower 17 are l:

    y = floor((2^13 c0 + c1 l + c2 s + bias) / 2^15),  s = l^2 / 2^19,

where s counts only the partial products of l^2 that are 2^19 or more. The widths are those of
Oberman & Siu (ARITH 2005): 26 bits for 1 + c0 / 2^25, 16 for c1, 10 for c2.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkernels import places
from labkernels.numerics.arrays import Array

FRACTION_BITS, SEGMENT_BITS = 23, 6
LOW_BITS = FRACTION_BITS - SEGMENT_BITS
ENTRIES, SEGMENTS = 1 << FRACTION_BITS, 1 << SEGMENT_BITS
DROPPED_BITS = 19  # bits dropped from the square
STEP_BITS = 15  # bits of the sum below y's last place
DATA_FILE = places.DATA / "hardware" / "ex2_sm90.json"


@dataclass(frozen=True)
class Parabolas:
    """The numbers in the unit: three integers per segment, and the bias added before the cut.

    Shapes: c0, c1, c2 int64 [64].
    """

    c0: np.ndarray
    c1: np.ndarray
    c2: np.ndarray
    bias: int

    def mantissa(self, fraction: Array) -> np.ndarray:
        """Return y of each f in 0 .. 2^23-1, where 2^(f / 2^23) is 1 + y / 2^23. Shapes: int64."""
        fraction = np.asarray(fraction)
        segment, low = fraction >> LOW_BITS, fraction & ((1 << LOW_BITS) - 1)
        total = (self.c0[segment] << (STEP_BITS - 2)) + self.c1[segment] * low
        return (total + self.c2[segment] * truncated_squares()[low] + self.bias) >> STEP_BITS


@functools.cache
def truncated_squares() -> np.ndarray:
    """Return s of every l: the square in units of 2^19, cut. Shapes: int64 [2^17].

    For l = 2^i + r with r < 2^i, bit i adds 2^2i, and 2^(i+1) times the bits of r that reach 2^19.
    """
    squares = np.zeros(1, dtype=np.int64)
    for i in range(LOW_BITS):
        rest = np.arange(1 << i)
        unseen = max(0, DROPPED_BITS - 1 - i)
        added = (rest >> unseen << (unseen + i + 1)) + (1 << 2 * i)
        squares = np.concatenate([squares, squares + (added >> DROPPED_BITS)])
    squares.flags.writeable = False
    return squares


def fit(mantissas: Array) -> Parabolas:
    """Find the parabolas behind a unit's 2^23 mantissas; they reproduce every mantissa.

    The least-squares parabola of a segment is so near that its coefficients round to those of the
    unit. Then only one bias fits between all mantissas and their successors. c0 is known up to a
    multiple of its last place: the bias is chosen in [0, 2^13).

    Shapes: integers [2^23]. Raises: ValueError if the table has no such parabolas.
    """
    rows = np.asarray(mantissas, dtype=np.int64).reshape(SEGMENTS, -1)
    low, squares = np.arange(1 << LOW_BITS), truncated_squares()
    basis = np.stack([np.ones(len(low)), low / 2**STEP_BITS, squares / 2**STEP_BITS], axis=1)
    solution = np.linalg.lstsq(basis, (rows + 0.5).T, rcond=None)[0]
    c1, c2 = (np.rint(line).astype(np.int64)[:, None] for line in solution[1:])
    rest = (rows << STEP_BITS) - c1 * low - c2 * squares
    # rest <= 2^13 c0 + bias < rest + 2^15 on a whole segment; all segments share the bias
    one = 1 << (STEP_BITS - 2)
    first, end = rest.max(axis=1), rest.min(axis=1) + (1 << STEP_BITS)
    biases = [set((np.arange(*ends) % one).tolist()) for ends in zip(first, end, strict=True)]
    shared = set.intersection(*biases)
    if len(shared) != 1:
        raise ValueError(f"mantissas leave {len(shared)} biases, allowed: a table of 64 parabolas")
    bias = shared.pop()
    c0 = -((bias - first) // one)
    return Parabolas(c0, c1[:, 0], c2[:, 0], bias)


@functools.cache
def load(path: Path = DATA_FILE) -> Parabolas:
    """Return the coefficients that were measured on an H200; do not write to them.

    Raises: ValueError unless the file has 64 rows of three; FileNotFoundError without a file.
    """
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    rows = np.array(content["c0, c1, c2"], dtype=np.int64)
    if rows.shape != (SEGMENTS, 3):
        raise ValueError(f"path = {path} has rows {rows.shape}, allowed: ({SEGMENTS}, 3)")
    rows.flags.writeable = False
    c0, c1, c2 = rows.T
    return Parabolas(c0, c1, c2, int(content["bias"]))
