"""Where compiled kernels are kept: a folder of files named by a hash of all that made them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder of compiled kernels, made if it is missing.

    The folder is LABKERNELS_CACHE where that is set, else labkernels in the user's cache folder.
    """
    chosen = os.environ.get("LABKERNELS_CACHE")
    if chosen:
        folder = Path(chosen).expanduser()
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = Path(base).expanduser() / "labkernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def content_key(*parts: str | bytes) -> str:
    """Return 32 hexadecimal digits that change when any part, or the cut between parts, changes."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:32]


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none, whoever else writes the same path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
