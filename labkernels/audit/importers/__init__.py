"""Files of other tools as tensors by the names of `names`: an importer is a file of this folder.

An importer has FORMAT, in words; SOURCE, the documentation of the format; takes(path), which says
whether a file or folder looks like one; and read(path, take), which gives tensors and numbers by
their names. Before a byte of a tensor is read, `take` says whether it is needed and small enough.
"""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from labkernels.audit.names import Take


def importers() -> list[ModuleType]:
    """Return every importer; those of folders come before those of single files."""
    found = [
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    ]
    return sorted((m for m in found if hasattr(m, "FORMAT")), key=lambda m: getattr(m, "ORDER", 1))


def read(path: Path, take: Take) -> dict:
    """Return the tensors and numbers of a file or folder, by the names of `names`.

    Raises: ValueError in one line, naming the file and what is wrong with it; FileNotFoundError.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    for module in importers():
        if module.takes(path):
            try:
                return module.read(path, take)
            except MemoryError:
                raise ValueError(f"{path}: there is not enough memory for it") from None
            except (OSError, EOFError, RuntimeError, ValueError) as error:
                text = " ".join(str(error).split()) or type(error).__name__
                known = text if text.startswith(str(path)) else f"{path}: cannot be read: {text}"
                raise ValueError(known) from None
    formats = "; ".join(module.FORMAT for module in importers())
    raise ValueError(f"{path}: suffix {path.suffix!r}, allowed: {formats}")
