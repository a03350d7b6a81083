"""torch.save's files: a dict of tensors, read without running code."""

import importlib
import pickle
import warnings
import zipfile
from pathlib import Path

from labkernels.audit.names import Take

FORMAT = ".pt or .pth of torch.save"
SOURCE = "https://docs.pytorch.org/docs/stable/generated/torch.load.html"


def takes(path: Path) -> bool:
    """Return whether the name ends as torch's files do."""
    return path.is_file() and path.suffix in (".pt", ".pth", ".bin")


def read(path: Path, take: Take) -> dict:
    """Return tensors by the file's names, those of nested dicts with dots between."""
    return _flat(load(path, take.limit_bytes))


def load(path: Path, limit_bytes: float):
    """Return the file's contents. Raises: ValueError if it is too large, broken, or holds code."""
    torch = importlib.import_module("torch")  # only here, since other files need no torch
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("its tensors are compressed, which torch.save never does")
        if any(member.flag_bits & 1 for member in members):
            raise ValueError("it is encrypted")
    if path.stat().st_size > limit_bytes:
        raise ValueError(f"{path.stat().st_size} bytes, allowed: {limit_bytes:.0f}; see --max-gib")
    try:
        with warnings.catch_warnings(action="ignore"):  # of the file, which answers in one line
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch have errors of their own
        if isinstance(error, pickle.UnpicklingError):  # torch advises to run the file's code here
            raise ValueError(
                "it holds more than tensors, numbers and text, which might run code; allowed: a "
                "dict of these, saved by torch.save"
            ) from None
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(first[:200]) from None


def _flat(value, prefix: str = "") -> dict:
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, allowed: a dict of tensors")
    found = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        found |= _flat(item, f"{name}.") if isinstance(item, dict) else {name: item}
    return found
