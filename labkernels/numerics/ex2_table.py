"""The tables of ex2.approx.ftz.f32: read from a device once, kept as differences of two bits.

A table has 2^23 entries, one a fraction f / 2^23: the bits of 2^(f / 2^23) (positive) and of
2^(-f / 2^23) (negative). They are stored as differences from a reference that needs nothing but
IEEE additions and multiplications, so that every machine and every language expands the same bits.

File: lzma (xz) around a header of 16 bytes and the packed differences of both tables. Header:
"lab-ex2 1" and zeros to 14 bytes, then the smallest difference of each table as an int8. Packed:
four entries a byte, the first in the lowest bits, each the difference minus the smallest.
"""

import functools
import lzma
from pathlib import Path

import numpy as np

ENTRIES = 1 << 23
DATA_FILE = Path(__file__).resolve().parents[2] / "data" / "ex2_sm90.xz"

_MAGIC = b"lab-ex2 1".ljust(14, b"\0")
_LN2 = 0.6931471805599453
_LOW_BITS = 11
_TAYLOR_DEGREE = 18


def reference_bits() -> tuple[np.ndarray, np.ndarray]:
    """Bits of 2^(f/2^23) and 2^(-f/2^23), f = 0 .. 2^23-1, rounded to nearest float32.

    Shapes: two of uint32 [2^23]. Error: none. The float64 before the rounding is within 2^-50, and
    no entry lies closer than 2^-47 to the middle between two float32.
    """
    high = _exp2_taylor(np.arange(ENTRIES >> _LOW_BITS) * 2.0 ** (_LOW_BITS - 23))
    low = _exp2_taylor(np.arange(1 << _LOW_BITS) * 2.0**-23)
    positive = np.multiply.outer(high, low).astype(np.float32).ravel().view(np.uint32)
    negative = np.empty_like(positive)
    negative[0] = positive[0]
    negative[1:] = positive[:0:-1] - np.uint32(1 << 23)  # 2^-f = 2^(1-f) / 2
    return positive, negative


def _exp2_taylor(x: np.ndarray) -> np.ndarray:
    """2^x for x in [0, 1), by Horner's rule in float64, one addition and two products a term."""
    y = x * _LN2
    total = np.ones_like(y)
    for k in range(_TAYLOR_DEGREE, 0, -1):
        total = total * y * (1.0 / k) + 1.0
    return total


def pack_ex2_table(positive_bits, negative_bits, path) -> None:
    """Writes both tables as a compressed file.

    Shapes: uint32 [2^23] each, the device's ex2.approx.ftz.f32 at f/2^23 and at -f/2^23.
    Raises: ValueError if an entry is too far from the reference for two bits.
    """
    parts = [_MAGIC]
    packed = []
    names = ("positive_bits", "negative_bits")
    for name, bits, reference in zip(
        names, (positive_bits, negative_bits), reference_bits(), strict=True
    ):
        bits = np.asarray(bits)
        if bits.shape != (ENTRIES,) or bits.dtype != np.uint32:
            raise ValueError(f"{name} is {bits.dtype} {bits.shape}, allowed: uint32 ({ENTRIES},)")
        difference = bits.astype(np.int64) - reference
        smallest = int(difference.min())
        if difference.max() - smallest > 3 or not -128 <= smallest <= 127:
            raise ValueError(
                f"{name} - reference = {smallest} to {difference.max()}, allowed: a span of 3"
            )
        codes = (difference - smallest).astype(np.uint8).reshape(-1, 4)
        parts.append(np.int8(smallest).tobytes())
        packed.append(codes[:, 0] | codes[:, 1] << 2 | codes[:, 2] << 4 | codes[:, 3] << 6)
    content = b"".join(parts + [part.tobytes() for part in packed])
    compressed = lzma.compress(content, lzma.FORMAT_XZ, preset=9 | lzma.PRESET_EXTREME)
    Path(path).write_bytes(compressed)


def load_ex2_table(path=DATA_FILE) -> tuple[np.ndarray, np.ndarray]:
    """Both tables, expanded: Tp and Tn.

    Shapes: uint32 [2^23] each, bits of float32.
    Raises: ValueError if the file is not such a table; FileNotFoundError if there is none.
    """
    path = Path(path)
    try:
        content = lzma.decompress(path.read_bytes(), lzma.FORMAT_XZ)
    except lzma.LZMAError as error:
        raise ValueError(f"path = {path}, allowed: an ex2 table ({error})") from error
    header = len(_MAGIC) + 2
    if content[: len(_MAGIC)] != _MAGIC or len(content) != header + ENTRIES // 2:
        raise ValueError(f"path = {path}, allowed: an ex2 table of {header + ENTRIES // 2} bytes")
    smallest = np.frombuffer(content, np.int8, 2, len(_MAGIC))
    codes = np.frombuffer(content, np.uint8, offset=header).reshape(2, -1)
    return tuple(
        reference + _unpack(part, int(low))
        for reference, part, low in zip(reference_bits(), codes, smallest, strict=True)
    )


def _unpack(codes: np.ndarray, smallest: int) -> np.ndarray:
    """Differences, modulo 2^32, four a byte."""
    two_bits = np.arange(256)[:, None] >> np.array([0, 2, 4, 6]) & 3
    return (two_bits + smallest).astype(np.uint32)[codes].ravel()


@functools.cache
def ex2_tables() -> tuple[np.ndarray, np.ndarray]:
    """Tp and Tn of the H200, read once a process from data/; not to be written to.

    Shapes: uint32 [2^23] each, bits of float32.
    """
    tables = load_ex2_table()
    for table in tables:
        table.flags.writeable = False
    return tables


def write_raw(path) -> None:
    """Writes Tp then Tn as little-endian uint32, 64 MiB, for a program that maps them."""
    with Path(path).open("wb") as file:
        for table in ex2_tables():
            table.astype("<u4", copy=False).tofile(file)
