"""A trace of FlashInfer-Bench: a JSONL line whose workload names tensors in safetensors files.

A workload has only inputs. The output is a file beside the trace, NAME.out.safetensors, with
`output` and perhaps `lse`, since a trace records the numbers of a solution, but not its tensors.
"""

import json
from pathlib import Path

from labkernels.audit.importers import safetensors
from labkernels.audit.names import Take

FORMAT = ".jsonl trace of FlashInfer-Bench"
SOURCE = (
    "https://github.com/flashinfer-ai/flashinfer-bench/blob/main/flashinfer_bench/data/workload.py"
)
_LONGEST = 64 * 2**20


def takes(path: Path) -> bool:
    """Return whether the name ends in .jsonl."""
    return path.is_file() and path.suffix == ".jsonl"


def read(path: Path, take: Take) -> dict:
    """Return the inputs of the first workload, and the output beside the file; lse in base 2."""
    if path.stat().st_size > _LONGEST:
        raise ValueError(f"it has {path.stat().st_size} bytes, allowed: {_LONGEST}")
    lines = path.read_text(encoding="utf-8").splitlines()
    record = json.loads(next((line for line in lines if line.strip()), "null"))
    workload = record.get("workload") if isinstance(record, dict) else None
    if not isinstance(workload, dict) or not isinstance(workload.get("inputs"), dict):
        raise ValueError("its first line has no workload with inputs")
    found = {}
    if "causal" in str(record.get("definition", "")):
        found["causal"] = 1
    for theirs, spec in workload["inputs"].items():
        name = take.name(theirs)
        if name is None:
            continue
        kind = spec.get("type")
        if kind == "scalar":
            found[name] = spec["value"]
        elif kind == "safetensors":
            found[name] = _tensor(path, spec, take)
        else:
            raise ValueError(f"input {theirs} is {kind!r}, allowed: safetensors and scalar")
    beside = path.with_suffix(".out.safetensors")
    if beside.is_file():
        found |= safetensors.read(beside, take)
    if "lse" in found:
        found["lse2"] = found.pop("lse")
    return found


def _tensor(path: Path, spec: dict, take: Take):
    """Return a tensor of a file named relative to the root of the trace set, some folders above."""
    for root in path.parents:
        file = (root / spec["path"]).resolve()
        if file.is_file() and file.is_relative_to(root.resolve()):
            key = spec["tensor_key"]
            entry = safetensors.header_of(file).get(key)
            if entry is None:
                raise ValueError(f"{spec['path']} has no tensor {key}")
            return safetensors.tensor(file, key, entry, take)
    raise ValueError(f"{spec['path']} lies in no folder above the trace")
