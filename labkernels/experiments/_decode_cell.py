"""One workload of the decode experiment: check, capture, time in turns, check again."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from labkernels.budget.occupancy import Occupancy
from labkernels.experiments._contenders import Contender, Ready
from labkernels.experiments._decode_grid import Cell
from labkernels.measure import accuracy, device, resources, timing
from labkernels.measure.accuracy import Bound, Chain, Errors, Reference
from labkernels.measure.cases import DecodeCase, decode_case
from labkernels.measure.peers import Refused, one_line
from labkernels.measure.resources import Loaded
from labkernels.measure.timing import Quartiles
from labkernels.workload import Decode


@dataclass(frozen=True, eq=False)
class Measured:
    """One contender's result; graph is None where it could not be captured, as `note` says."""

    contender: Contender
    ready: Ready
    errors: Errors
    eager: Quartiles
    graph: Quartiles | None
    loaded: Loaded | None
    predicted: Occupancy | None
    note: str = ""


@dataclass(eq=False)
class CellResult:
    """What a cell gave: measurements, and words for those contenders that have none."""

    case: DecodeCase
    reference: Reference
    sensors: dict[str, float] = field(default_factory=dict)
    measured: dict[str, Measured] = field(default_factory=dict)
    words: list[tuple[Contender, str, str]] = field(default_factory=list)


def measure_cell(
    cell: Cell,
    chosen: Mapping[str, Contender],
    *,
    repeats: int,
    seed: int,
    missing: Mapping[str, str],
) -> CellResult:
    """Measure every chosen contender on one workload, on the current CUDA device.

    `missing` holds the reason of each backend that cannot run here.
    """
    case = decode_case(cell.workload, seed=seed)
    reference = accuracy.decode_reference(case.q, case.cache, scale=case.scale)
    result = CellResult(case, reference)
    judge = _Judge(case, reference)
    ready = _prepare(cell, chosen, result, missing)
    for name in list(ready):
        if _runs(name, ready, chosen, result):
            _drop_if_wrong(name, ready, judge, chosen, result)
    replays, notes = _capture(ready)

    with device.sampling() as reading:
        graph = timing.time_interleaved(replays, repeats=repeats) if replays else {}
    result.sensors = reading.sensors
    runs = {name: item.run for name, item in ready.items()}
    eager = timing.time_interleaved(runs, repeats=max(4, repeats // 3), eager=True) if runs else {}
    # The outputs that count are those of the timed path, after all that timing.
    for name in list(ready):
        _poison(ready[name])
        replays.get(name, runs[name])()
        errors = _drop_if_wrong(name, ready, judge, chosen, result)
        if errors is not None:
            loaded, predicted = _driver(chosen[name], ready[name], cell.workload)
            result.measured[name] = Measured(
                chosen[name],
                ready[name],
                errors,
                eager[name],
                graph.get(name),
                loaded,
                predicted,
                notes.get(name, ""),
            )
    return result


def numbers(measured: Measured) -> np.ndarray:
    """Return a contender's output in float64. Shapes: [B, Hq, D]."""
    return accuracy.as_float64(measured.ready.out)


def _driver(
    contender: Contender, ready: Ready, workload: Decode
) -> tuple[Loaded | None, Occupancy | None]:
    """Return what the driver says of a CUDA kernel of ours, and what the budget predicts."""
    if contender.instance is None:
        return None, None
    import torch

    from labkernels.cuda.device import planning_gpu

    gpu = planning_gpu(torch.cuda.current_device())
    instance = contender.instance(workload, ready.plan.tile)
    known = resources.resources(instance, gpu=gpu)
    return resources.loaded(instance, arch=gpu.compile_arch), known.occupancy


class _Judge:
    """Bounds of a case, computed once for each way of rounding."""

    def __init__(self, case: DecodeCase, reference: Reference) -> None:
        self._case, self._reference = case, reference
        self._bounds: dict[Chain, Bound] = {}

    def __call__(self, ready: Ready, chain: Chain) -> Errors:
        case = self._case
        if chain not in self._bounds:
            self._bounds[chain] = accuracy.decode_bound(
                case.q, case.cache, chain, scale=case.scale, dtype=case.workload.dtype
            )
        return accuracy.judge(ready.out, ready.lse2, self._reference, self._bounds[chain])


def _prepare(
    cell: Cell,
    chosen: Mapping[str, Contender],
    result: CellResult,
    missing: Mapping[str, str],
) -> dict[str, Ready]:
    """Plan and compile the contenders that can take the workload; words for the others."""
    from labkernels.cuda.compile import CompileError

    ready: dict[str, Ready] = {}
    for name, contender in chosen.items():
        if contender.is_flashinfer and not cell.with_flashinfer:
            continue
        reason = missing.get(contender.backend) or contender.available()
        if reason:
            result.words.append((contender, "unavailable", reason))
            continue
        try:
            ready[name] = contender.prepare(result.case)
        except (Refused, ValueError) as error:
            result.words.append((contender, "refused", one_line(error)))
        except CompileError as error:
            result.words.append((contender, "failed", one_line(error)))
    return ready


def _runs(
    name: str,
    ready: dict[str, Ready],
    chosen: Mapping[str, Contender],
    result: CellResult,
) -> bool:
    """Run a contender for the first time, which may compile it; drop it if that fails."""
    _poison(ready[name])
    try:
        ready[name].run()
    except Exception as error:  # each compiler and library has error classes of its own
        result.words.append((chosen[name], "failed", one_line(error)))
        del ready[name]
        return False
    return True


def _poison(ready: Ready) -> None:
    for tensor in (ready.out, ready.lse2):
        if tensor is not None:
            tensor.fill_(float("nan"))


def _drop_if_wrong(
    name: str,
    ready: dict[str, Ready],
    judge: _Judge,
    chosen: Mapping[str, Contender],
    result: CellResult,
) -> Errors | None:
    """Return the errors of an output that kept its bound; drop the contender otherwise."""
    errors = judge(ready[name], chosen[name].chain)
    if errors.passed:
        return errors
    reason = (
        f"worst error {errors.bound_ratio:.3g} of its bound, allowed: 1; worst head's RMSE "
        f"{errors.rmse_ratio:.3g} of the expected, allowed: {accuracy.RMSE_RATIO_MAX:g}"
    )
    result.words.append((chosen[name], "failed", reason))
    del ready[name]
    return None


def _capture(ready: Mapping[str, Ready]) -> tuple[dict, dict[str, str]]:
    """Return the replay of each contender that a CUDA graph can hold, and the others' reasons."""
    replays, notes = {}, {}
    for name, item in ready.items():
        try:
            replays[name] = timing.capture(item.run).replay
        except RuntimeError as error:
            notes[name] = f"not captured: {one_line(error)}"
    return replays, notes
