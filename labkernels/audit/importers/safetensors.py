"""safetensors: a JSON header with every tensor's type, shape and place, then the bytes."""

import json
import math
import struct
from functools import partial
from pathlib import Path

import numpy as np

from labkernels.audit.names import Take
from labkernels.numerics import rounding

FORMAT = ".safetensors"
SOURCE = "https://github.com/huggingface/safetensors#format"
_LONGEST_HEADER = 100_000_000
_BYTES = {"F8_E4M3": 1, "F8_E5M2": 1}
_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",  # its bits
    "F8_E4M3": "e4m3",
    "F8_E5M2": "e5m2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


def takes(path: Path) -> bool:
    """Return whether the name ends in .safetensors."""
    return path.is_file() and path.suffix == ".safetensors"


def read(path: Path, take: Take) -> dict:
    """Return readers of arrays; bf16 is read as its bits, fp8 as its values."""
    header = header_of(path)
    return {name: partial(_tensor, path, name, entry, take) for name, entry in header.items()}


def header_of(path: Path) -> dict[str, dict]:
    """Return the entry of every tensor. Raises: ValueError for another kind of file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(size - 8, _LONGEST_HEADER):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_once)
    if not isinstance(header, dict):
        raise ValueError("its header is not a table of tensors")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        lists = (offsets, entry.get("shape")) if offsets is not None else (None,)
        if not all(isinstance(x, list) and all(type(n) is int for n in x) for x in lists):
            raise ValueError(f"tensor {name}: its entry has no shape and data_offsets of integers")
        if len(offsets) != 2:
            raise ValueError(f"tensor {name}: {len(offsets)} data_offsets, allowed: 2")
    return {name: entry | {"start": 8 + length, "file": size} for name, entry in header.items()}


def _once(pairs: list[tuple]) -> dict:
    """Return a JSON object. Raises: ValueError where two entries have one name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("two entries of its header have one name")
    return found


def _tensor(path: Path, theirs: str, entry: dict, take: Take):
    """Return one tensor of a file."""
    kind, shape = entry.get("dtype"), entry.get("shape")
    if kind not in _TYPES:
        raise ValueError(f"tensor {theirs}: dtype {kind!r}, allowed: {', '.join(_TYPES)}")
    fp8 = kind in _BYTES
    dtype = np.dtype("u1" if fp8 else _TYPES[kind])
    size = take.claim(theirs, shape, dtype.itemsize)
    first, last = (int(x) for x in entry["data_offsets"])
    if last - first != size or first < 0 or entry["start"] + last > entry["file"]:
        raise ValueError(f"tensor {theirs}: bytes {first} to {last}, allowed: {size} in the file")
    with path.open("rb") as file:
        file.seek(entry["start"] + first)
        array = np.frombuffer(file.read(size), dtype, count=math.prod(shape)).reshape(shape)
    return rounding.from_bits(array, _TYPES[kind]) if fp8 else array
