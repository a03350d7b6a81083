"""Files of other tools as tensors by the names of `names`: an importer is a file of this folder.

An importer has FORMAT, in words; SOURCE, the documentation of the format; takes(path), which says
whether a file or folder looks like one; and read(path, take), which gives tensors and numbers by
the file's own names, or functions that read them. Such a function claims its bytes first.
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
    module = next((module for module in importers() if module.takes(path)), None)
    if module is None:
        formats = "; ".join(module.FORMAT for module in importers())
        raise ValueError(f"{path}: suffix {path.suffix!r}, allowed: {formats}")
    try:
        given = {name: x for name, x in module.read(path, take).items() if x is not None}
        return {
            ours: _value(theirs, given[theirs], take) for theirs, ours in take.chosen(given).items()
        }
    except MemoryError:
        raise ValueError(f"{path}: there is not enough memory for it") from None
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError) as error:
        text = " ".join(str(error).split())
        if not text or isinstance(error, KeyError | TypeError):
            text = f"{type(error).__name__} {text}".strip()
        known = text if text.startswith(str(path)) else f"{path}: cannot be read: {text}"
        raise ValueError(known) from None


def _value(theirs: str, entry, take: Take):
    value = entry() if callable(entry) else entry
    if not hasattr(value, "element_size"):
        return value
    if str(value.layout) != "torch.strided" or value.device.type == "meta":
        raise ValueError(f"tensor {theirs} is {value.layout} on {value.device}, allowed: values")
    if not callable(entry):  # it may claim more elements than it has bytes for
        take.claim(theirs, value.shape, value.element_size())
    return value.detach()
