"""A folder that FlashInfer dumps at FLASHINFER_LOGLEVEL=10: inputs, outputs and metadata of a call.

Positional arguments are arg_0, arg_1, ..., and the signature in the metadata gives their names; a
method's arguments begin after self. A wrapper gets its pages by plan, whose dump is another folder
of the same session and self_id; its arguments are read too.
"""

import json
import re
from pathlib import Path

from labkernels.audit.importers import safetensors, torch_pt
from labkernels.audit.names import Take

FORMAT = "a folder of FlashInfer's level-10 dumps"
SOURCE = "https://github.com/flashinfer-ai/flashinfer/blob/main/flashinfer/api_logging.py"
ORDER = 0
_LONGEST_METADATA = 64 * 2**20
_RESULTS = {"result": "out", "result_0": "out", "result_1": "lse2"}


def takes(path: Path) -> bool:
    """Return whether the path is the folder of a call, or of a session."""
    return path.is_dir() and (_is_call(path) or any(map(_is_call, path.iterdir())))


def _is_call(path: Path) -> bool:
    return (path / "metadata.jsonl").is_file()


def read(path: Path, take: Take) -> dict:
    """Return the call's tensors and numbers by its parameters; lse in base 2, as FlashInfer's.

    Raises: ValueError that names a call, for a session of several.
    """
    if not _is_call(path):
        calls = sorted(filter(_is_call, path.iterdir()))
        if len(calls) > 1:
            raise ValueError(f"{path}: {len(calls)} calls, allowed: one, such as {calls[-1].name}")
        path = calls[0]
    found, about = _call(path, take), _metadata(path)
    if "self_id" in about:
        for folder in sorted(path.parent.iterdir(), reverse=True):
            if folder == path or not _is_call(folder):
                continue
            other = _metadata(folder)
            same = other.get("self_id") == about["self_id"]
            if same and str(other.get("function_name", "")).endswith("plan"):
                found = {k: v for k, v in _call(folder, take).items() if k != "out"} | found
                break
    return found


def _call(path: Path, take: Take) -> dict:
    about = _metadata(path)
    order = _parameters(str(about.get("function_signature", "")))
    numbers = about.get("input_metadata") or {}
    found = {n: x for n, x in numbers.items() if isinstance(x, int | float | bool | str)}
    for kind in ("inputs", "outputs"):
        for module, suffix in ((safetensors, "safetensors"), (torch_pt, "pt")):
            if (file := path / f"{kind}.{suffix}").is_file():
                found |= module.read(file, take)
    return {_named(theirs, order): value for theirs, value in found.items()}


def _named(theirs: str, order: list[str]) -> str:
    """Return the parameter that an entry stands for; the parts of a pair of K and V are k and v."""
    if theirs in _RESULTS:
        return _RESULTS[theirs]
    base, _, part = theirs.partition("__")
    if base.startswith("arg_") and base[4:].isdigit():
        number = int(base[4:])
        base = order[number] if number < len(order) else base
    base = base.removeprefix("kwarg_")
    if part in ("0", "1") and base in ("paged_kv_cache", "kv_cache"):
        return "kv"[int(part)]
    return base


def _parameters(signature: str) -> list[str]:
    """Return the names of the parameters, in order; self is one, and argument 0 of a method."""
    flat = re.sub(r"\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]", "", signature)
    return re.findall(r"[(,]\s*\*?([A-Za-z_]\w*)\s*(?=[:=,)])", flat)


def _metadata(path: Path) -> dict:
    file = path / "metadata.jsonl"
    if file.stat().st_size > _LONGEST_METADATA:
        raise ValueError(f"metadata.jsonl has {file.stat().st_size} bytes")
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError("metadata.jsonl is empty")
    found = json.loads(lines[-1])
    if not isinstance(found, dict):
        raise ValueError("metadata.jsonl holds no record")
    return found
