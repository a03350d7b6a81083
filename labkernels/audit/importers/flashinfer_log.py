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


def takes(path: Path) -> bool:
    """Return whether the path is the folder of a call, or of a session."""
    return path.is_dir() and (_is_call(path) or any(map(_is_call, path.iterdir())))


def _is_call(path: Path) -> bool:
    return (path / "metadata.jsonl").is_file()


def read(path: Path, take: Take) -> dict:
    """Return the call's tensors and numbers by our names; lse in base 2, as FlashInfer has it.

    Raises: ValueError that names a call, for a session of several.
    """
    if not _is_call(path):
        calls = sorted(filter(_is_call, path.iterdir()))
        if len(calls) > 1:
            raise ValueError(f"{path}: {len(calls)} calls, allowed: one, such as {calls[-1].name}")
        path = calls[0]
    found, about = _call(path, take)
    if "self_id" in about:
        for folder in sorted(path.parent.iterdir(), reverse=True):
            if folder == path or not _is_call(folder):
                continue
            other = _metadata(folder)
            same = other.get("self_id") == about["self_id"]
            if same and str(other.get("function_name", "")).endswith("plan"):
                planned, _ = _call(folder, take)
                found = {k: v for k, v in planned.items() if k not in ("q", "out")} | found
                break
    if "lse" in found:
        found["lse2"] = found.pop("lse")
    return found


def _call(path: Path, take: Take) -> tuple[dict, dict]:
    about = _metadata(path)
    order = _parameters(str(about.get("function_signature", "")))
    tensors = {}
    for kind in ("inputs", "outputs"):
        tensors |= _tensors(path, kind, order, take)
    given = about.get("input_metadata") or {}
    known = {_named(theirs, order): value for theirs, value in given.items()}
    known = {name: value for name, value in known.items() if _is_plain(value)}
    for theirs, name in take.chosen(known).items():
        tensors.setdefault(name, known[theirs])
    return tensors, about


def _tensors(path: Path, kind: str, order: list[str], take: Take) -> dict:
    names = {"result": "out", "result_0": "out", "result_1": "lse"}
    found = {}
    if (path / f"{kind}.safetensors").is_file():
        file = path / f"{kind}.safetensors"
        header = safetensors.header_of(file)
        given = {names.get(theirs) or _named(theirs, order): theirs for theirs in header}
        for named, name in take.chosen(given).items():
            theirs = given[named]
            found[name] = safetensors.tensor(file, theirs, header[theirs], take)
    elif (path / f"{kind}.pt").is_file():
        values = torch_pt.load(path / f"{kind}.pt", take.limit_bytes)
        given = {names.get(theirs) or _named(theirs, order): theirs for theirs in values}
        for named, name in take.chosen(given).items():
            value = values[given[named]]
            take.claim(named, value.shape, value.element_size())
            found[name] = value
    return found


def _named(theirs: str, order: list[str]) -> str:
    """Return the parameter that an entry stands for; the parts of a pair of K and V are k and v."""
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


def _is_plain(value) -> bool:
    return isinstance(value, int | float | bool | str)


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
