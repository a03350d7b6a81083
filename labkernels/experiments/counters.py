"""What the parts of an SM were busy with: kernels, peers and a matrix product, profiled."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments import _decode_rows as decode_rows
from labkernels.kernels.spec import discover
from labkernels.measure import backward_peers, counters, device, prefill_peers
from labkernels.measure import ladder as rungs_of
from labkernels.measure.counted import BACKWARD, GEMM, PREFILL, Call
from labkernels.measure.counters import Counted, Profile
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row

NAME = "counters"
TITLE = "Hardware counters of prefill, backward and a matrix product, by Nsight Compute"
DATA_FILE = "counters.csv"
HEAD_DIMS = (64, 128, 256)
CHANNELS, BATCH, LENGTH = 2048, 4, 4096
GEMM_ROWS = 8192
UNITS = {metric.name: metric.unit for metric in counters.METRICS}


def calls(head_dim: int, *, quick: bool = False) -> list[Call]:
    """Return what is counted at one head_dim; `quick` keeps the kernels, at 256 tokens."""
    batch, length = (1, 256) if quick else (BATCH, LENGTH)
    shape = {"batch": batch, "length": length, "heads": CHANNELS // head_dim, "head_dim": head_dim}
    names = {family: _kernels(family, head_dim) for family in (PREFILL, BACKWARD)}
    names[PREFILL] += [name for name in prefill_peers.PEERS if name.startswith("torch")]
    names[BACKWARD] += [name for name in backward_peers.PEERS if name.startswith("torch")]
    return [Call(name, family, **shape) for family, listed in names.items() for name in listed]


def groups(*, quick: bool = False) -> dict[str, list[Call]]:
    """Return the calls of each child process, by a name; `--only` is looked for in name/kernel."""
    rows = 256 if quick else GEMM_ROWS
    found = {"gemm": [Call("cublas", GEMM, batch=0, length=rows, heads=0, head_dim=0)]}
    for head_dim, family in product(HEAD_DIMS, (PREFILL, BACKWARD)):
        listed = calls(head_dim, quick=quick)
        found[f"d{head_dim} {family}"] = [call for call in listed if call.family == family]
    return found | {"ladder": ladder(quick=quick)}


def ladder(*, quick: bool = False) -> list[Call]:
    """Return the ladder's rungs, each a kernel and tile."""
    shape = calls(rungs_of.HEAD_DIM, quick=quick)[0]
    return [replace(shape, name=rung.kernel, tile=rung.tile) for rung in rungs_of.rungs()]


def run(options: Options) -> Outcome:
    """Count on this machine's GPU and write the data file as it goes.

    Raises: ValueError if there is no GPU, no profiler, no commit, nothing to count, or a quick run
    would write among the committed data.
    """
    from labkernels.cuda import device as cuda_device

    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/ and quick is on; allowed: --quick with --out FOLDER")
    chosen = {
        name: [call for call in listed if options.picks(f"{name}/{call.name}")]
        for name, listed in groups(quick=options.quick).items()
    }
    chosen = {name: listed for name, listed in chosen.items() if listed}
    if not chosen:
        raise ValueError(f"only is {options.only!r} and matches nothing; allowed: d128 prefill")
    reason = cuda_device.available() or counters.available()
    if reason:
        raise ValueError(f"{NAME} needs a GPU and a profiler: {reason}")
    started, commit, facts = datetime.now(UTC), commit_text(options), device.facts()
    options.progress(f"{facts['gpu']}, {len(chosen)} children, commit {commit}")
    path, failures, total, fresh = options.out / DATA_FILE, [], 0, options.replace
    for name, listed in chosen.items():
        try:
            with device.sampling() as reading:
                found = counters.profile(listed)
        except RuntimeError as error:  # what the other children count is kept
            failures.append(f"{name}: {error}")
            continue
        origin = provenance.collect(
            {**facts, **reading.sensors},
            seed=options.seed,
            repeats=1,
            commit=commit,
            started=started,
        )
        failures += [f"{label}: {reason}" for label, reason in found.failed.items()]
        rows = [origin | row for row in rows_of(listed, found)]
        put = store.replace if fresh else store.append
        total, fresh = total + put(path, rows, schema.PREFILL_MEASUREMENTS), False
        options.progress(f"{name}: {len(found.counted)} kernels, {len(found.refused)} refused")
    datapackage.write(options.out)
    return Outcome(total, (path,), tuple(failures))


def rows_of(listed: list[Call], found: Profile) -> list[Row]:
    """Return a row for each counter of each kernel; note is the kernel's name on the GPU."""
    rows = [row for item in found.counted for row in _counted_rows(item)]
    for metric, words in (("refused", found.refused), ("failed", found.failed)):
        for call in listed:
            if call.label in words:
                rows.append(decode_rows.word_row(_base(call), metric, words[call.label]))
    return rows


def _counted_rows(item: Counted) -> list[Row]:
    base = _base(item.call) | {"note": item.function}
    return [
        decode_rows.row(base, name, "exact", value, UNITS[name])
        for name, value in item.values.items()
    ]


def kernel_column(call: Call) -> str:
    """Return what the rows of a call name as their kernel: a peer's backward is another one."""
    peer = call.family == BACKWARD and call.name not in discover()
    return f"{call.name} backward" if peer else call.name


def _base(call: Call) -> Row:
    specs = discover()
    spec = specs.get(call.name)
    return {
        "experiment": NAME,
        "kernel": kernel_column(call),
        "backend": spec.language if spec else "torch",
        "tensor_cores": "off" if spec and not spec.uses_tensor_cores(spec.policies[0]) else "on",
        "tile": call.tile,
        "policy": spec.policies[0].label if spec else "",
        "batch": call.batch,
        "kv_len": call.length,
        "q_len": call.length,
        "q_heads": call.heads,
        "kv_heads": call.heads,
        "head_dim": call.head_dim,
        "page_size": 0,
        "causal": call.causal,
        "dtype": call.dtype,
    }


def _kernels(family: str, head_dim: int) -> list[str]:
    return [
        name
        for name, spec in discover().items()
        if spec.family == family and head_dim in spec.head_dims and spec.language != "torch"
    ]
