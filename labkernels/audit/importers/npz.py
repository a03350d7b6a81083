"""NumPy's npz: a zip of npy files, whose headers are checked before a tensor is read."""

import zipfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from labkernels.audit.names import Take

FORMAT = ".npz of NumPy"
SOURCE = "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"
_LONGEST_HEADER = 10_000
_EXPANDS_MOST, _UNASKED_BYTES = 200, 2**28  # a bomb's content expands a thousandfold
_PIECE_BYTES = 2**20


def takes(path: Path) -> bool:
    """Return whether the name ends in .npz."""
    return path.is_file() and path.suffix == ".npz"


def read(path: Path, take: Take) -> dict:
    """Return readers of arrays; 16-bit numbers without a type of NumPy are bits of bf16."""
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not an npz file, or was cut short")
    with zipfile.ZipFile(path) as archive:
        members = [(m.filename.removesuffix(".npy"), m) for m in archive.infolist()]
    found = {theirs: partial(_array, path, member, theirs, take) for theirs, member in members}
    if len(found) < len(members):
        raise ValueError("two of its members have one name, allowed: a name for each")
    return found


def _array(path: Path, member: zipfile.ZipInfo, theirs: str, take: Take) -> np.ndarray:
    try:
        with zipfile.ZipFile(path) as archive:
            return _member(archive, member, theirs, take)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"tensor {theirs} cannot be read: {error}") from None


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, theirs: str, take: Take):
    with archive.open(member) as file:
        assert isinstance(file, zipfile.ZipExtFile)  # the stubs promise less
        known = npy.read_array_header_1_0, npy.read_array_header_2_0
        read_header = known[npy.read_magic(file)[0] > 1]
        shape, fortran, dtype = read_header(file, max_header_size=_LONGEST_HEADER)
        if dtype.hasobject:
            raise ValueError("Object arrays are not read, since they may run code")
        if dtype.names is not None:
            raise ValueError(f"it has elements {dtype}, allowed: plain numbers")
        size = take.claim(theirs, shape, dtype.itemsize)
        most = max(_UNASKED_BYTES, _EXPANDS_MOST * member.compress_size)
        if size > most:
            raise ValueError(
                f"{member.compress_size} bytes expand to {size}, allowed: {_EXPANDS_MOST} times as "
                f"many, or {_UNASKED_BYTES}"
            )
        content = np.empty(size + 1, np.uint8)  # memory is only used for the bytes that arrive
        found = 0
        while part := file.readinto(content[found : found + _PIECE_BYTES]):
            found += part
    if found != size:
        raise ValueError(f"it has {found} bytes or more, allowed: {size}, as its header says")
    values = content[:size].view("<u2" if dtype.str == "|V2" else dtype)
    return values.reshape(shape, order="F" if fortran else "C")
