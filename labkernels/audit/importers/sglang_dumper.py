"""A folder of SGLang's dumper: a file per tensor, named by its tags, {"value", "meta"} inside.

A tag's name may have a prefix, as in `name=attn__q`. If there are several steps, layers or ranks,
the first with q and an output is read.
"""

from pathlib import Path

from labkernels.audit.importers import torch_pt
from labkernels.audit.names import Take

FORMAT = "a folder of SGLang's dumper"
SOURCE = "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/debug_utils/dumper.py"
ORDER = 0
_BETWEEN = "___"
_GROUP = ("step", "layer_id", "rank")


def takes(path: Path) -> bool:
    """Return whether the path is a folder of files whose names are tags."""
    return path.is_dir() and next(path.glob("*name=*.pt"), None) is not None


def tags_of(path: Path) -> dict[str, str]:
    """Return the tags of a file's name."""
    parts = (part.partition("=") for part in path.stem.split(_BETWEEN))
    return {key: value for key, equals, value in parts if equals}


def read(path: Path, take: Take) -> dict:
    """Return the tensors of the first step, layer and rank that has q and out, by our names."""
    groups: dict[tuple, dict[str, Path]] = {}
    for file in sorted(path.glob("*name=*.pt")):
        tags = tags_of(file)
        key = tuple(tags.get(name, "") for name in _GROUP)
        groups.setdefault(key, {})[tags["name"].rpartition("__")[2]] = file
    for files in groups.values():
        named = {take.name(theirs): file for theirs, file in files.items()}
        if {"q", "out"} <= named.keys():
            return {
                name: _value(file, name, take) for name, file in named.items() if name is not None
            }
    raise ValueError("no step and layer has q and out; --map q=NAME says what they are called")


def _value(file: Path, name: str, take: Take):
    found = torch_pt.load(file, take.limit_bytes)
    value = found.get("value") if isinstance(found, dict) else found
    if hasattr(value, "element_size"):
        take.claim(name, value.shape, value.element_size())
    return value
