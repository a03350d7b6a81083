"""Checksums of kernels' outputs: how they are taken and recorded."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.kernels.spec import Instance, discover
from labkernels.measure import device
from labkernels.records import datapackage, provenance, store
from labkernels.records.schema import Table
from labkernels.records.store import Row
from labkernels.workload import Backward, Decode, MlaDecode, Prefill


@dataclass(frozen=True)
class Trial:
    """One run: a compiled variant on a workload, with a number of keys a split where it splits."""

    instance: Instance
    workload: Decode | Prefill | MlaDecode | Backward
    keys_per_split: int | None = None


def digest(*tensors) -> str:
    """SHA-256 of the bytes of tensors on any device."""
    import torch

    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def record(
    options: Options,
    trials: Sequence[Trial],
    *,
    checksum: Callable[[Trial], str],
    row: Callable[[Trial, str], Row],
    data_file: str,
    table: Table,
) -> Outcome:
    """Run every trial on this machine's GPU and write the checksums, replacing the file.

    Raises: ValueError if there is no GPU, no commit, or part of the trials would replace the file.
    """
    started = datetime.now(UTC)
    commit = commit_text(options)
    facts = device.facts()
    chosen = [trial for trial in trials if options.only in _label(trial)]
    if options.quick:
        chosen = chosen[:4]
    if (options.quick or options.only) and options.out == store.DATA_DIR:
        raise ValueError("out is data/, where the table must be whole; allowed: --out FOLDER")
    with device.sampling() as reading:
        sums = [checksum(trial) for trial in chosen]
    origin = provenance.collect(
        {**facts, **reading.sensors},
        seed=options.seed,
        repeats=1,
        commit=commit,
        started=started,
    )
    rows = [row(trial, text) | origin for trial, text in zip(chosen, sums, strict=True)]
    path = options.out / data_file
    store.replace(path, rows, table)
    datapackage.write(options.out)
    outputs = sum(int(line["value"]) for line in rows)
    options.progress(f"{len(rows)} checksums of {outputs} outputs")
    return Outcome(len(rows), (path,))


def _label(trial: Trial) -> str:
    """What `--only` is looked for in."""
    return f"{trial.instance.kernel}/{trial.workload.label}"


def row(experiment: str, trial: Trial, text: str, shape: Row, *, what: str, outputs: int) -> Row:
    """A trial's row without its provenance: how many outputs, and their checksum in `note`.

    shape: the columns that say what was computed.
    """
    instance = trial.instance
    on = discover()[instance.kernel].uses_tensor_cores(instance.policy)
    return {
        "experiment": experiment,
        "kernel": instance.kernel,
        "backend": "cuda",
        "tensor_cores": "on" if on else "off",
        "tile": instance.tile.label,
        "policy": instance.policy.label,
        **shape,
        "metric": f"outputs, {what}",
        "statistic": "total",
        "value": outputs,
        "unit": "1",
        "note": f"sha256 {text}",
    }
