"""A folder of SGLang's dumper: a file per tensor, named by its tags, {"value", "meta"} inside.

A tag's name may have a prefix, as in `name=attn__q`. If there are several steps, layers or ranks,
the first with q and an output is read. The folder above, DUMPER_DIR, is read if it holds one such
folder.
"""

from functools import partial
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
    return path.is_dir() and bool(_folders(path))


def _folders(path: Path) -> list[Path]:
    """Return the folders of dumps: this one, or those in it."""
    those = (path, *sorted(x for x in path.iterdir() if x.is_dir()))
    found = [x for x in those if next(x.glob("*name=*.pt"), None) is not None]
    return found[:1] if path in found else found


def tags_of(path: Path) -> dict[str, str]:
    """Return the tags of a file's name."""
    parts = (part.partition("=") for part in path.stem.split(_BETWEEN))
    return {key: value for key, equals, value in parts if equals}


def read(path: Path, take: Take) -> dict:
    """Return the tensors of the first step, layer and rank that has q and out."""
    folders = _folders(path)
    if len(folders) > 1:
        named = ", ".join(x.name for x in folders[:8])
        raise ValueError(f"{path}: {len(folders)} folders of dumps, allowed: one of {named}")
    path = folders[0]
    groups: dict[tuple, dict[str, Path]] = {}
    for file in sorted(path.glob("*name=*.pt")):
        tags = tags_of(file)
        key = tuple(tags.get(name, "") for name in _GROUP)
        groups.setdefault(key, {})[tags["name"].rpartition("__")[2]] = file
    for files in groups.values():
        if {"q", "out"} <= {take.ours(name) for name in files}:
            if len(groups) > 1:
                take.unread[f"{len(groups) - 1} more steps, layers or ranks"] = None
            return {name: partial(_value, file, name, take) for name, file in files.items()}
    there = ", ".join(sorted({name for files in groups.values() for name in files})[:12])
    raise ValueError(
        f"no step and layer has q and out; there are {there}; --map q=NAME says what is called so"
    )


def _value(file: Path, name: str, take: Take):
    found = torch_pt.load(file, take.limit_bytes)
    value = found.get("value") if isinstance(found, dict) else found
    if hasattr(value, "element_size"):
        take.claim(name, value.shape, value.element_size())
    return value
