"""The sources of a compile, read once: what is hashed is what the compiler gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def included(text: str, folders: Sequence[Path]) -> dict[str, bytes]:
    """Return every file that `text`, or a file it includes, includes by "": name -> content.

    Each name is looked up in `folders`, in order; a name in none of them is the compiler's own.
    """
    found: dict[str, bytes] = {}
    names = _INCLUDE.findall(text.encode())
    for name in map(bytes.decode, names):  # to which the loop appends
        path = next((path for folder in folders if (path := folder / name).is_file()), None)
        if path is not None and name not in found:
            found[name] = path.read_bytes()
            names += _INCLUDE.findall(found[name])
    return found


def parts(files: Mapping[str, bytes]) -> list[str | bytes]:
    """Return names and contents in the order of names, for cache.content_key."""
    return [part for name in sorted(files) for part in (name, files[name])]


def write(files: Mapping[str, bytes], folder: Path) -> Path:
    """Write the files below a folder, which then holds all that a compiler may include by "".

    Raises: ValueError for a name that would lie outside it.
    """
    for name, content in files.items():
        if name.startswith("/") or ".." in Path(name).parts:
            raise ValueError(f"include is {name!r}; allowed: a path below an include folder")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
