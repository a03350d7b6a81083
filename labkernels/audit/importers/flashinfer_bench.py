"""A trace of FlashInfer-Bench: JSONL lines whose workloads name tensors in safetensors files.

A workload has only inputs. The output is a file beside the trace, NAME.out.safetensors, or
NAME.UUID.out.safetensors of the workload with this uuid, with `output` and perhaps `lse`, since a
trace records the numbers of a solution, but not its tensors. Inputs that its runner draws at random
must be in that file too: the random numbers depend on the device.
"""

import json
from functools import partial
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
    """Return the inputs of a workload, and the output beside the file; lse in base 2."""
    if path.stat().st_size > _LONGEST:
        raise ValueError(f"it has {path.stat().st_size} bytes, allowed: {_LONGEST}")
    record, beside = _workload(path)
    specs = record["workload"]["inputs"]
    found = {name: partial(_input, path, name, specs[name], beside, take) for name in specs}
    if "causal" in str(record.get("definition", "")):
        found["causal"] = 1
    if beside.is_file():
        found |= safetensors.read(beside, take)
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


def _input(path: Path, name: str, spec, beside: Path, take: Take):
    """Return a number, or a tensor of a file that is named relative to the trace set's root."""
    kind = spec.get("type") if isinstance(spec, dict) else type(spec).__name__
    if kind == "scalar":
        return spec["value"]
    if kind == "random":
        raise ValueError(
            f"input {name} was drawn at random when the solution ran; save it beside the output "
            f"in {beside.name}"
        )
    if kind != "safetensors":
        raise ValueError(f"input {name} is {kind!r}, allowed: safetensors and scalar")
    for needed in ("path", "tensor_key"):
        if not isinstance(spec.get(needed), str):
            raise ValueError(f"input {name} has {needed} = {spec.get(needed)!r}, allowed: a name")
    for root in path.parents:
        file = (root / spec["path"]).resolve()
        if file.is_file() and file.is_relative_to(root.resolve()):
            tensors = safetensors.read(file, take)
            if spec["tensor_key"] not in tensors:
                raise ValueError(f"{spec['path']} has no tensor {spec['tensor_key']}")
            return tensors[spec["tensor_key"]]()
    raise ValueError(f"{spec['path']} lies in no folder above the trace")
