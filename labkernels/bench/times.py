"""Times of a workload: live times, recorded times with their provenance, and the least time."""

from typing import Any

from labkernels.budget import roofline
from labkernels.budget.roofline import Floor
from labkernels.experiments.rows import workload_columns
from labkernels.hardware import Gpu
from labkernels.measure.benchmark import Benchmark, Measured
from labkernels.records import recorded, store

RECORDED = {
    "decode": "decode_tensor_cores",
    "prefill": "prefill",
    "mla": "mla",
    "backward": "backward",
}
METRICS = ("time_graph", "time")
SIMULATION = "simulation, not performance"
LIVE, RECORD = "live", "recorded"


def live_rows(found: Benchmark) -> list[dict]:
    """Return one row per implementation: its time, or the reason why it has none."""
    rows: list[dict[str, Any]] = []
    for item in found.measured.values():
        row: dict[str, Any] = {
            "kernel": item.implementation.kernel,
            "language": item.implementation.library,
        }
        row |= {
            "tensor_cores": item.implementation.tensor_cores,
            "workload": found.inputs.workload.label,
        }
        row["origin"] = f"computed on {item.step.plan.machine}"
        if item.simulated_s is not None:
            row |= {"time_ms": 1e3 * item.simulated_s, "kind": SIMULATION}
        else:
            times = {"time_ms": "median_s", "q25_ms": "q25_s", "q75_ms": "q75_s"}
            row |= {name: 1e3 * getattr(item.times, field) for name, field in times.items()}
            row["kind"] = LIVE
        rows.append(row | {"note": item.note or note_of(item, found.inputs.workload)})
    for reason in found.reasons:
        left = reason.implementation
        row = {"kernel": left.kernel, "language": left.library, "tensor_cores": left.tensor_cores}
        row |= {
            "workload": found.inputs.workload.label,
            "kind": reason.metric,
            "note": reason.words,
        }
        rows.append(row)
    return rows


def note_of(item: Measured, workload) -> str:
    """Return how a simulation's arithmetic differs from a GPU's, as text."""
    interpreted = item.simulated_s is not None and item.implementation.library == "triton"
    if interpreted and workload.dtype == "bf16" and item.implementation.policy.tensor_cores:
        return "the interpreter multiplies bf16 in fp32, so that P is not rounded"
    return ""


def recorded_rows(operation: str, workload) -> list[dict]:
    """Return the recorded times of exactly this workload, ours and the peers', if any.

    All are of one recording, since times of two may differ by their clocks or versions: of the one
    with the most implementations, and of the newest such.
    """
    rows = store.read(RECORDED[operation])
    notes = (workload.label,) if workload.variant.features else ("", workload.label)
    rows = [row for row in rows if row["metric"] in METRICS and row["note"] in notes]
    given = {k: v for k, v in workload_columns(workload).items() if not rows or k in rows[0]}
    same = store.select(rows, given)
    runs: dict[str, list[dict]] = {}
    for row in same:
        runs.setdefault(row["started_utc"], []).append(row)
    columns = ("kernel", "tensor_cores", "policy")
    sizes = {run: len({tuple(r[c] for c in columns) for r in rows}) for run, rows in runs.items()}
    chosen = runs[max(sizes, key=lambda run: (sizes[run], run))] if runs else []
    found: dict[tuple, dict] = {}
    for row in chosen:
        key = row["kernel"], row["tensor_cores"], row["policy"]
        one = found.setdefault(
            key,
            {
                "kernel": row["kernel"],
                "language": row["backend"],
                "tensor_cores": row["tensor_cores"],
                "workload": workload.label,
                "kind": RECORD,
                "origin": recorded.origin([row]),
                "note": "",
            },
        )
        name = {"median": "time_ms", "q25": "q25_ms", "q75": "q75_ms"}[row["statistic"]]
        one[name] = 1e3 * row["value"]
    return sorted(found.values(), key=lambda row: row["time_ms"])


def floor(workload, gpu: Gpu, *, tensor_cores: bool) -> Floor:
    """Return the least time of a workload, at the measured copy rate where it is known."""
    many = hasattr(workload, "q_lens")
    rows = 16 if tensor_cores and not many else None
    rate = gpu.measured_copy_bytes_per_s
    return roofline.least_time(
        workload, gpu, tensor_cores=tensor_cores, mma_rows=rows, bytes_per_s=rate
    )
