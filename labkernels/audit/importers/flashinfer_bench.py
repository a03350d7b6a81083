"""A trace of FlashInfer-Bench: JSONL lines whose workloads name tensors in safetensors files.

A workload has only inputs. The output is a file beside the trace, NAME.out.safetensors, or
NAME.UUID.out.safetensors of the workload with this uuid, with `output` and perhaps `lse`, since a
trace records the numbers of a solution, but not its tensors. Inputs that its runner draws at random
must be in that file too: the random numbers depend on the device.
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
    record, beside = _workload(path)
    inputs, found = record["workload"]["inputs"], {}
    if "causal" in str(record.get("definition", "")):
        found["causal"] = 1
    saved = safetensors.read(beside, take) if beside.is_file() else {}
    for theirs, name in take.chosen(inputs).items():
        spec = inputs[theirs]
        kind = spec.get("type") if isinstance(spec, dict) else type(spec).__name__
        if name in saved:
            continue
        if kind == "scalar":
            found[name] = spec["value"]
        elif kind == "safetensors":
            found[name] = _tensor(path, spec, take)
        elif kind == "random":
            raise ValueError(
                f"input {theirs} was drawn at random when the solution ran; save it beside the "
                f"output in {beside.name}"
            )
        else:
            raise ValueError(f"input {theirs} is {kind!r}, allowed: safetensors and scalar")
    found |= saved
    if "lse" in found:
        found["lse2"] = found.pop("lse")
    return found


def _workload(path: Path) -> tuple[dict, Path]:
    """Return the record that has an output beside the file, else the only one, and that output."""
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines if line.strip()]
    found = []
    for record in records:
        workload = record.get("workload") if isinstance(record, dict) else None
        if isinstance(workload, dict) and isinstance(workload.get("inputs"), dict):
            found.append((record, path.with_suffix(f".{workload.get('uuid')}.out.safetensors")))
    if not found:
        raise ValueError(f"none of its {len(records)} lines has a workload with inputs")
    of_output = [(record, beside) for record, beside in found if beside.is_file()]
    if len(of_output) == 1:
        return of_output[0]
    uuids = {record["workload"].get("uuid") for record, _ in found}
    if len(uuids) == 1:
        return found[0][0], path.with_suffix(".out.safetensors")
    names = ", ".join(beside.name for _, beside in (of_output or found)[:4])
    words = f"{len(uuids)} workloads, and outputs of {len(of_output)} beside it"
    raise ValueError(f"{words}, allowed: one output, such as {names}")


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
