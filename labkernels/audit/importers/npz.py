"""NumPy's npz: a zip of npy files, whose headers are checked before a tensor is read."""

import ast
import struct
import zipfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np

from labkernels.audit.names import Take

FORMAT = ".npz of NumPy"
SOURCE = "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"
_MAGIC = b"\x93NUMPY"
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
    except (zipfile.BadZipFile, zlib.error, struct.error, SyntaxError) as error:
        raise ValueError(f"tensor {theirs} cannot be read: {error}") from None
    except (RuntimeError, EOFError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"tensor {theirs} cannot be read: {error}") from None


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, theirs: str, take: Take):
    with archive.open(member) as file:
        assert isinstance(file, zipfile.ZipExtFile)  # the stubs promise less
        if file.read(6) != _MAGIC:
            raise ValueError("it is not an npy file")
        version = file.read(2)
        wide = version[:1] != b"\x01"
        (length,) = struct.unpack("<I" if wide else "<H", file.read(4 if wide else 2))
        if length > _LONGEST_HEADER:
            raise ValueError(f"its header has {length} bytes, allowed: {_LONGEST_HEADER}")
        header = ast.literal_eval(file.read(length).decode("latin1"))
        shape, descr = header["shape"], header["descr"]
        if not isinstance(descr, str) or not isinstance(shape, tuple):
            raise ValueError(f"it has elements {str(descr)[:40]}, allowed: plain numbers")
        dtype = np.dtype("<u2" if descr in ("<V2", "|V2") else descr)
        if dtype.hasobject:
            raise ValueError("Object arrays are not read, since they may run code")
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
    order = "F" if header.get("fortran_order") else "C"
    return content[:size].view(dtype).reshape(shape, order=order)
