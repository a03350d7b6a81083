"""Record checksums of all output bits of the CUDA kernels, which CPU builds recompute anywhere."""

import hashlib
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.operation import BitCase, Operation, operations
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.kernels.registry import discover
from labkernels.records import schema
from labkernels.records.store import Row

RUNS = {"backward": 1000}  # runs on the GPU, to find sums whose order changes between runs
QUICK_CASES = 2  # runs of the first cell


def data_file(operation: str) -> str:
    """Return the file of an operation's checksums."""
    return f"accuracy/{operation}_bits.parquet"


def cases(operation: Operation) -> Iterator[BitCase]:
    """Yield the runs of an operation's CUDA kernels, in the order of the rows."""
    for kernel in discover().values():
        if (kernel.operation, kernel.language) == (operation.name, "cuda"):
            yield from operation.bit_cases(kernel)


def cells(operation: Operation, options: Options) -> Iterator[Cell]:
    """Yield the runs of one kernel, dtype and head_dim together; `quick` keeps two runs."""
    for label, alike in itertools.groupby(cases(operation), key=_label):
        if options.quick:
            yield Cell(label, list(alike)[:QUICK_CASES])
            return
        yield Cell(label, list(alike))


def rows(operation: Operation, cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Run each case on this machine's GPU, and take its checksum."""
    runs = 2 if recording.options.quick else RUNS.get(operation.name, 1)
    how = {"seed": recording.options.seed, "device": recording.device, "runs": runs}
    with recording.sampling():
        sums = [checksum(operation, case, **how) for case in cell.of]
    recording.tell(f"{sum(outputs for _, outputs in sums)} outputs")
    for case, found in zip(cell.of, sums, strict=True):
        yield data_file(operation.name), row(operation, case, *found)


def checksum(
    operation: Operation, case: BitCase, *, seed: int, device: str, runs: int = 1
) -> tuple[str, int]:
    """Return the SHA-256 of a case's outputs on a device ("cpu": the CPU build), and their number.

    Raises: ValueError if the kernel does not support the case, or a run has other bits.
    """
    step = operation.step(operation.inputs(case.workload, ExactNormal(seed, device)), **case.asked)
    step.run()
    outputs: dict[str, Any] = step.outputs()._asdict()
    first = [x.clone() for x in outputs.values()]
    different = sum(_differs(step, outputs.values(), first) for _ in range(runs - 1))
    if different:
        allowed = "0: each sum has one order"
        raise ValueError(f"{different} of {runs} runs have other bits, allowed: {allowed}")
    return digest(*first), sum(x.numel() for name, x in outputs.items() if name != "lse2")


def digest(*tensors) -> str:
    """Return the SHA-256 of the bytes of tensors on any device."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def row(operation: Operation, case: BitCase, text: str, outputs: int) -> Row:
    """Return a case's row: the number of outputs, and their checksum in `note`."""
    instance = case.instance
    splits = f"{case.options.get('keys_per_split')} keys a split"
    runs = RUNS.get(operation.name)
    base = measured.base_row(
        case.workload,
        kernel=instance.kernel,
        backend="cuda",
        tensor_cores="on" if instance.policy.tensor_cores else "off",
        tile=instance.tile.label,
        policy=instance.policy.label,
    )
    metric = f"outputs, {f'the same in {runs} runs' if runs else splits}"
    metric += getattr(case.workload, "cache_label", "")
    total = measured.row(base, metric, "total", outputs, "1")
    return total | {"note": f"sha256 {text}", "repeats": 1}


def _differs(step, outputs, first) -> bool:
    """Run a step again, and return whether its bits differ."""
    for x in outputs:
        x.fill_(float("nan"))
    step.run()
    pairs = zip(outputs, first, strict=True)
    return not all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in pairs)


def _label(case: BitCase) -> str:
    instance = case.instance
    return f"{instance.kernel}/{instance.dtype}/d{instance.head_dim}"


def _experiment(operation: Operation, case: BitCase) -> Experiment:
    """Return the experiment of an operation; one of its cases tells which table its rows fit."""
    masked = "causal" in measured.workload_columns(case.workload)
    name = data_file(operation.name)
    return Experiment(
        f"{operation.name}_bits",
        f"SHA-256 of the outputs of every CUDA kernel of {operation.name}, which CPU builds must "
        "reproduce",
        {name: schema.PREFILL_MEASUREMENTS if masked else schema.MEASUREMENTS},
        partial(cells, operation),
        partial(rows, operation),
        renewed=(name,),
        whole=True,
    )


EXPERIMENTS = tuple(
    _experiment(operation, case)
    for operation in operations().values()
    for case in itertools.islice(cases(operation), 1)
)
