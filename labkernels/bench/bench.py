"""The bench: runs workloads on this machine and keeps their budgets, times and errors."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from labkernels import hardware
from labkernels.bench import budgets, errors, times
from labkernels.bench.budgets import Planned
from labkernels.bench.formulas import Equations
from labkernels.bench.layers import layers_of
from labkernels.bench.log import Log
from labkernels.bench.small import small
from labkernels.cuda import triton_run
from labkernels.cuda.gpu import device
from labkernels.hardware import Gpu
from labkernels.kernels.checks import DEFAULT_TARGET
from labkernels.kernels.operation import Operation, operations
from labkernels.measure.benchmark import Benchmark, benchmark, simulate
from labkernels.measure.implementation import (
    Implementation,
    implementations,
    on_and_off,
    references,
)
from labkernels.plots import bench as figures

BAR_AFTER_S = 2


class Bench:
    """Workloads on all kernels of their operations: budgets, occupancy, times and errors.

    workloads: one each of Decode, Prefill, MlaDecode and Backward or of some of them, at full size.
    kernels: one name or several; the default is every kernel of each operation, in CUDA and Triton,
    with tensor cores on and off, and the reference. gpu: the GPU that budgets are computed for; the
    default is this machine's GPU, else an H200. repeats: how often each time is measured on a GPU.
    On a GPU of sm_80 or newer `run` computes the workloads as they are; elsewhere CUDA kernels run
    as CPU builds, and Triton kernels under Triton's interpreter, on the small workloads in `here`.
    Raises: ValueError naming an unknown kernel or GPU, or a second workload of an operation.

    >>> from labkernels import Decode
    >>> bench = Bench(Decode((64, 17), 8, 2, 128), kernels=["decode_fma", "decode_mma"])
    >>> sorted(bench.run().kernel)
    ['decode_fma', 'decode_mma']
    """

    def __init__(
        self,
        *workloads,
        kernels: str | Iterable[str] | None = None,
        gpu: str | None = None,
        seed: int = 0,
        repeats: int = 20,
    ) -> None:
        self.workloads = workloads
        self.log = Log()
        self._seed, self._repeats = seed, repeats
        self._on_gpu = device.available() is None
        self.gpu = _gpu(gpu, self._on_gpu)
        self._operations = _operations(workloads)
        self._items = _chosen([of.name for of in self._operations], kernels)
        self._found: dict[str, Benchmark] = {}

    @classmethod
    def from_config(
        cls, config: Mapping | str | Path, *, batch=16, kv_len=8192, tokens=2048, **options
    ) -> "dict[str, Bench]":
        """Return a bench of decode and prefill for each kind of layer of a published model.

        config: a configuration of transformers, or the path of its config.json. options: those of a
        Bench. Kinds, lengths and Raises are those of `layers.layers_of`.

        >>> config = {"num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8}
        >>> config |= {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2}
        >>> benches = Bench.from_config(config, tokens=512)
        >>> benches["window"].workloads[0].label
        '16 x 8192, 64/8, d64, page 16, bf16, window 127'
        """
        found = layers_of(config, batch=batch, kv_len=kv_len, tokens=tokens)
        return {kind: cls(of.decode, of.prefill, **options) for kind, of in found.items()}

    def __repr__(self) -> str:
        labels = [workload.label for workload in self.workloads]
        here = "as they are" if self._on_gpu else "small, as CPU builds"
        done = f"ran: {', '.join(self._found)}" if self._found else "not run yet"
        names = ", ".join(of.name for of in self._operations)
        return f"Bench({'; '.join(labels)}) of {names}, here {here}; {done}"

    @cached_property
    def here(self) -> tuple:
        """The workloads that this machine computes: as given on a GPU, else small ones."""
        return self.workloads if self._on_gpu else tuple(map(small, self.workloads))

    def run(self) -> pd.DataFrame:
        """Run every kernel here, judge its output, and time it; the live rows of `times`.

        A kernel that cannot run here keeps its row in the table, with the reason as a note. On a
        machine whose GPU is too old, a printed line says so.
        """
        if not self._on_gpu:
            _say_why_no_gpu_is_used()
            _interpret_triton()
        for of, workload in zip(self._operations, self.here, strict=True):
            how = {"seed": self._seed, "progress": partial(_bar, of.name)}
            items = self._items[of.name]
            if self._on_gpu:
                how |= {"graph": True, "repeats": self._repeats}
                self._found[of.name] = benchmark(of, workload, items, **how)
            else:
                self._found[of.name] = simulate(of, workload, items, **how)
            self.log.runs += self._logged(of.name)
        return self._live()

    def _logged(self, operation: str) -> Iterator[dict[str, str]]:
        found = self._found[operation]
        for done in found.measured.values():
            yield {
                "operation": operation,
                "kernel": done.implementation.kernel,
                "language": done.implementation.library,
                "tensor_cores": done.implementation.tensor_cores,
                "machine": done.step.plan.machine,
                "workload": found.inputs.workload.label,
            }

    def _live(self) -> pd.DataFrame:
        return pd.DataFrame(
            {"operation": name} | row
            for name, found in self._found.items()
            for row in times.live_rows(found)
        )

    def times(self) -> pd.DataFrame:
        """Return times measured here, and recorded times of the whole workloads with their origin.

        Units: milliseconds; quartiles if a time was measured more than once. kind: "live",
        "recorded", or "simulation, not performance" for a CPU build or an interpreter. A kernel
        that did not run has its reason as a note.
        """
        recorded = pd.DataFrame(
            {"operation": of.name} | row
            for of, workload in zip(self._operations, self.workloads, strict=True)
            for row in times.recorded_rows(of.name, workload)
        )
        tables = [table for table in (self._live(), recorded) if not table.empty]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def floors(self) -> pd.DataFrame:
        """Return the least time of each whole workload, tensor cores on and off, and what sets it.

        Units: milliseconds, at the measured copy rate where there is one, else the vendor's peaks.
        """
        rows = []
        for of, workload in zip(self._operations, self.workloads, strict=True):
            for way in ("on", "off"):
                least = times.floor(workload, self.gpu, tensor_cores=way == "on")
                parts = {"memory": least.memory_s, "math": least.math_s, "exp": least.exp_s}
                row = {f"{name}_ms": 1e3 * seconds for name, seconds in parts.items()}
                named = {"operation": of.name, "workload": workload.label, "tensor_cores": way}
                rows.append(named | row | {"bound": least.bound, "least_ms": 1e3 * least.time_s})
        return pd.DataFrame(rows)

    def budgets(self, *, gpu: str | None = None) -> pd.DataFrame:
        """Return each term of every kernel's registers and shared memory, and compiled numbers.

        counts: whether the term is part of the total; terms that share space do not all count.
        """
        return pd.DataFrame(
            named | row for named, found in self._planned(gpu) for row in budgets.budget_rows(found)
        )

    def equations(self, kernel: str, *, gpu: str | None = None) -> Equations:
        """Return the formulas of a CUDA kernel: shared memory, registers, and the blocks from both.

        Each formula is a table: a term in a row, its constants named, then what the compiler says.
        Raises: ValueError naming the kernels that have formulas.
        """
        for named, found in self._planned(gpu):
            if kernel in (named["kernel"], found.item.name):
                derived = budgets.equations(found)
                operation = named["operation"]
                self.log.formulas += [(operation, name) for name in derived.names]
                return derived
        known = dict.fromkeys(named["kernel"] for named, _ in self._planned(gpu))
        raise ValueError(f"kernel = {kernel!r}, allowed: {', '.join(known)}")

    def occupancy(self, *gpus: str) -> pd.DataFrame:
        """Return blocks per SM by each resource, the limiting resource, warps and waves.

        A kernel that a GPU cannot run, or that has no ledger, says why in `note`.
        """
        return pd.DataFrame(
            named | budgets.occupancy_row(found)
            for gpu in gpus or (None,)
            for named, found in self._planned(gpu)
        )

    def errors(self) -> pd.DataFrame:
        """Return the errors against float64 by kernel, tensor, sample (request) and head.

        rmse; bias along the truth's sign; max_abs; bound_ratio, the worst error over its bound;
        note, how the arithmetic differed from a GPU's. Of more than 16 requests, 16 at equal
        distances are judged.
        Raises: ValueError before `run`.
        """
        return self._judged(errors.error_rows, *self._ran())

    def elements(self) -> pd.DataFrame:
        """Return single elements' errors: sample, head, truth, error, error over bound.

        Raises: ValueError before `run`.
        """
        return self._judged(errors.element_rows, *self._ran())

    def plot_budget(self) -> Figure:
        """Draw the predicted terms as a stacked bar, and the compiler's number as a mark.

        Raises: ValueError with the reasons if no kernel has a ledger on the GPU.
        """
        self._require_ledgers(self.gpu.key)
        self._drew("budget")
        return figures.budget(self.budgets(), origin=f"predicted; compiled for {self.gpu.name}")

    def plot_timing(self) -> Figure:
        """Draw live and recorded times of the whole workloads beside the least times."""
        self._drew("timing")
        return figures.timing(self.times(), self.floors())

    def plot_occupancy(self, *gpus: str) -> Figure:
        """Draw the blocks that fit an SM, what limits them, and what one block more would take.

        Raises: ValueError with the reasons if no kernel has a ledger on any of the GPUs.
        """
        self._require_ledgers(*(gpus or [self.gpu.key]))
        self._drew("occupancy")
        return figures.occupancy(self.occupancy(*gpus), origin="computed from the ledgers")

    def plot_errors(self, operation: str = "") -> Figure:
        """Draw an operation's errors: a map of samples and heads, distributions by head and sample.

        Raises: ValueError before `run`, or naming an operation that the bench does not have.
        """
        ran = self._ran()
        operation = operation or ran[0]
        if operation not in ran:
            raise ValueError(f"operation = {operation!r}, allowed: {', '.join(ran)}")
        self.log.figures.append((operation, "errors"))
        cells = self._judged(errors.error_rows, operation)
        drawn = partial(errors.element_rows, most=figures.MOST_ELEMENTS)
        elements = self._judged(drawn, operation)
        machine = device.planning_gpu().name if self._on_gpu else "this machine"
        return figures.errors(cells, elements, origin=f"computed on {machine}")

    def _ran(self) -> list[str]:
        if not self._found:
            raise ValueError("outputs = none, allowed: those of a bench after run()")
        return list(self._found)

    def _require_ledgers(self, *gpus: str) -> None:
        """Raise ValueError unless a kernel has a ledger on one of the GPUs."""
        plans = [found for gpu in gpus for _, found in self._planned(gpu)]
        if all(found.known is None for found in plans):
            reasons = "; ".join(dict.fromkeys(found.reason for found in plans))
            asked = f"kernels = {[found.item.name for found in plans]} on {', '.join(gpus)}"
            raise ValueError(f"{asked}, allowed: one with a ledger; {reasons}")

    def _drew(self, kind: str) -> None:
        self.log.figures += [(of.name, kind) for of in self._operations]

    def _planned(self, gpu: str | None) -> Iterator[tuple[dict[str, str], Planned]]:
        """Yield how each implementation would serve its whole workload on a GPU."""
        if not self._on_gpu:
            _interpret_triton()
        target = self.gpu if gpu is None else hardware.gpu(gpu)
        wanted = [
            (of, workload, item, target)
            for of, workload in zip(self._operations, self.workloads, strict=True)
            for item in self._items[of.name]
        ]
        new = [each for each in wanted if (each[2].name, target.key) not in self._plans]
        for found in budgets.all_planned(new, progress=partial(_bar, "compile")):
            self._plans[found.item.name, target.key] = found
        for of, _, item, _ in wanted:
            named = {"operation": of.name, "kernel": item.kernel, "language": item.library}
            named["tensor_cores"] = item.tensor_cores
            yield named, self._plans[item.name, target.key]

    @cached_property
    def _plans(self) -> dict[tuple[str, str], Planned]:
        return {}

    def _judged(self, rows, *names: str) -> pd.DataFrame:
        tables = []
        for name in names:
            workload = self._found[name].inputs.workload
            for item, parts in self._elements(name):
                told = {"operation": name, "kernel": item.implementation.kernel}
                told |= {"language": item.implementation.library}
                told["tensor_cores"] = item.implementation.tensor_cores
                told["note"] = times.note_of(item, workload)
                tables.append(rows(parts, workload).assign(**told))
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def _elements(self, operation: str) -> list:
        if operation not in self._parts:
            found = self._found[operation]
            judge = errors.judge_requests(operations()[operation], found.inputs)
            self._parts[operation] = [
                (
                    item,
                    judge.elements(
                        item.step.outputs(), item.implementation.policy, item.step.forward
                    ),
                )
                for item in _bar(f"{operation}, errors", list(found.measured.values()))
            ]
        return self._parts[operation]

    @cached_property
    def _parts(self) -> dict[str, list]:
        return {}


def _operations(workloads: Sequence) -> list[Operation]:
    """Return the operation of each workload; a bench has one workload of an operation."""
    known = {of.workload: of for of in operations().values() if of.name in times.RECORDED}
    allowed = ", ".join(kind.__name__ for kind in known)
    if not workloads:
        raise ValueError(f"workloads = (), allowed: one or more of {allowed}")
    for workload in workloads:
        if type(workload) not in known:
            raise ValueError(f"workload = {workload!r}, allowed: one of {allowed}")
    kinds = [type(workload) for workload in workloads]
    for kind in kinds:
        if kinds.count(kind) > 1:
            named = f"workloads = {kinds.count(kind)} of {kind.__name__}"
            raise ValueError(f"{named}, allowed: one; make a Bench for each of the others")
    return [known[kind] for kind in kinds]


def _gpu(key: str | None, on_gpu: bool) -> Gpu:
    if key is None and on_gpu:
        return device.planning_gpu()
    return hardware.gpu(key or DEFAULT_TARGET)


def _chosen(
    names: Sequence[str], kernels: str | Iterable[str] | None
) -> dict[str, list[Implementation]]:
    """Return the lab's kernels and the reference of each operation, or the named kernels."""
    every = {
        name: [
            *references(name).values(),
            *(item for item in implementations(name, on_and_off).values() if item.is_ours),
        ]
        for name in names
    }
    if kernels is None:
        return every
    known = {item.spec.name for items in every.values() for item in items}
    wanted = [kernels] if isinstance(kernels, str) else list(kernels)
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"kernels = {unknown}, allowed: {', '.join(sorted(known))}")
    return {
        name: [item for item in items if item.spec.name in wanted] for name, items in every.items()
    }


def _say_why_no_gpu_is_used() -> None:
    """Print the reason if this machine has a GPU, but one that is too old for the kernels."""
    gpu = device.live()
    if gpu is not None:
        print(f"{device.unsupported(gpu)}, as this bench does.")


def _interpret_triton() -> None:
    """Import Triton as an interpreter, before anything imports it as a compiler.

    If Triton is missing, or was imported as a compiler already, the rows of its kernels say so.
    """
    with contextlib.suppress(RuntimeError):
        triton_run.interpreted("triton")


def _bar(name: str, items: list) -> Iterable:
    """Return the items, with a progress bar for slow loops if tqdm is installed."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return items
    # tqdm reads this variable only when it makes the widgets of its notebook bar
    off = bool(os.environ.get("TQDM_DISABLE"))
    return tqdm(items, desc=name, unit="kernel", delay=BAR_AFTER_S, leave=False, disable=off)
