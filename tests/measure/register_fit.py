"""Fit the habits of ptxas in `budget.compiler` to its reports, and measure the fit's errors.

A habit is a number of registers that ptxas adds for each unit of a kernel's feature. The habits
minimise the mean relative error over the rows of data/performance/compiler_reports.parquet, with a
penalty on rows beyond TAIL. The quality of a fit shows on rows that it has not seen: `held_out`
fits again without a group of rows, a fifth of the tiles or a whole kernel, and predicts that group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from labkernels import hardware
from labkernels.budget.compiler import EDGE, FITS, HABITS, MERGE, SPILLS
from labkernels.measure import resources
from labkernels.records import store

BAND = 0.12  # relative error up to which a prediction is near
TAIL, TAIL_WEIGHT = 0.09, 2.0  # relative error above which a row costs more, and how much more
REGISTER_COST = 1e-6  # breaks ties in favour of fewer registers
STEPS = (32, 8, 4, 2, 1)  # steps of the search, in units of a habit's precision
FOLDS = 5
SPILL_ANSWERS = (FITS, EDGE, SPILLS)
NAMES = tuple(HABITS)
# Features that occur often in a loop get numbers to a tenth or a quarter; others get whole
# registers.
PRECISION = np.array(
    [{"copies": 0.1, "loaded ahead": 0.1, "bf16 widened": 0.25}.get(name, 1.0) for name in NAMES]
)
CHOSEN = np.array([float(HABITS[name].registers) for name in NAMES])
# The start depends on no row. The merge alone starts high: below the loop's registers it would
# change no prediction, and the search could not fit it.
START = np.where(PRECISION == 1, 32.0, 0.5)
START[NAMES.index(MERGE)] = 128


@dataclass(frozen=True)
class Reports:
    """The compiler's reports, and the quantities from which they are predicted.

    Shapes: features [rows, habits], with the habits in the order of NAMES; all others [rows].
    answers: what the prediction says of spills, one of SPILL_ANSWERS.
    """

    rows: tuple[store.Row, ...]
    registers: np.ndarray
    spilled: np.ndarray
    held: np.ndarray
    limit: np.ndarray
    trades: np.ndarray
    answers: np.ndarray
    features: np.ndarray

    def predicted(self, habits: np.ndarray = CHOSEN) -> np.ndarray:
        """Registers per thread of each row, equal to those of `predicted_registers`."""
        merge = NAMES.index(MERGE)
        added = np.floor(self.features * habits + 1e-9)
        floor = added[:, merge]
        need = np.maximum(self.held + added.sum(axis=1) - floor, floor)
        return np.where(self.trades, self.limit, np.minimum(need, self.limit))

    def errors(self, habits: np.ndarray = CHOSEN) -> np.ndarray:
        """Relative errors of the prediction, signed."""
        return self.predicted(habits) / self.registers - 1


def reports() -> Reports:
    """Every recorded report, without a variant, of a tile that its kernel still has."""
    instances = {_key(resources.recorded_as(i)): i for i in resources.all_instances()}
    gpus = {arch: hardware.by_arch(arch)[0] for arch in hardware.ARCHS}
    rows, columns, answers = [], [], []
    for row in store.read("compiler_reports"):
        instance = instances.get(_key(row))
        if instance is None:
            continue
        spec, gpu = resources.find(instance.kernel), gpus[row["arch"]]
        made, asked = spec.predicted_registers(instance, gpu), spec.asked(instance, gpu.arch)
        features = {name: amount.value for name, amount in asked.all_features(gpu.arch).items()}
        features[MERGE] = int(asked.merges_splits)
        rows.append(row)
        held = spec.registers(instance).total
        known = (row["registers"], row["spill_bytes"], held, made.limit, made.trades)
        answers.append(made.answer)
        columns.append((*known, *(features.get(name, 0) for name in NAMES)))
    table = np.array(columns, dtype=np.float64)
    registers, spilled, held, limit, trades = table[:, :5].T
    return Reports(
        tuple(rows),
        registers,
        spilled > 0,
        held,
        limit,
        trades.astype(bool),
        np.array(answers),
        table[:, 5:],
    )


def fit(known: Reports, chosen: np.ndarray) -> np.ndarray:
    """Return the habits that predict the chosen rows best, from START by ever smaller steps.

    A step changes one habit, or two in the same or in opposite directions. Some features, such as
    what is kept and what is loaded ahead, differ little in most rows, so a search that changes
    single habits would stop early.
    """
    habits, best = START.copy(), _loss(known, START, chosen)
    ways = _ways()
    for step in STEPS:
        better = True
        while better:
            better = False
            for way in ways:
                tried = np.maximum(habits + step * way, 0)
                loss = _loss(known, tried, chosen)
                if loss < best - 1e-12:
                    habits, best, better = tried, loss, True
    return habits


def spill_rows(known: Reports) -> list[dict[str, Any]]:
    """Return a row for each answer about spills: how often it was given, and what then happened.

    "rows" counts reports and "tiles" kernels' tiles. "rows that spill" counts the reports with a
    spill, and "tiles that spill" the tiles that have such a report for any architecture.
    "most bytes": spilled bytes per thread, stored and loaded.
    """
    tiles = np.array([f"{row['kernel']} {row['tile']} {row['head_dim']}" for row in known.rows])
    found = []
    for answer in SPILL_ANSWERS:
        said = known.answers == answer
        bytes_of = [row["spill_bytes"] for row, x in zip(known.rows, said, strict=True) if x]
        counts = {"rows": int(said.sum()), "rows that spill": int((said & known.spilled).sum())}
        spilling = set(tiles[said & known.spilled])
        counts |= {"tiles": len(set(tiles[said])), "tiles that spill": len(spilling)}
        found.append({"answer": answer, **counts, "most bytes": max(bytes_of, default=0)})
    return found


def _ways() -> np.ndarray:
    units = np.diag(PRECISION)
    one = [sign * unit for unit in units for sign in (1, -1)]
    two = [a - b for a in units for b in units if a is not b]
    both = [a + b for i, a in enumerate(units) for b in units[:i]]
    return np.array([*one, *two, *both, *(-way for way in both)])


def held_out(known: Reports, group: Callable[[store.Row], object]) -> np.ndarray:
    """Return the relative error of each row, predicted by habits fitted without its group."""
    groups = np.array([str(group(row)) for row in known.rows])
    errors = np.empty(len(groups))
    for name in sorted(set(groups)):
        left_out = groups == name
        errors[left_out] = known.errors(fit(known, ~left_out))[left_out]
    return errors


def tile_fold(row: store.Row) -> int:
    """Return the row's group of FOLDS; all rows of a kernel's tile and head_dim have the same."""
    return crc32(f"{row['kernel']} {row['tile']} {row['head_dim']}".encode()) % FOLDS


def _loss(known: Reports, habits: np.ndarray, chosen: np.ndarray) -> float:
    errors = np.abs(known.errors(habits))[chosen]
    tail = np.maximum(errors - TAIL, 0).mean()
    return float(errors.mean() + TAIL_WEIGHT * tail + REGISTER_COST * habits.sum())


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return tuple(row[n] for n in ("kernel", "tile", "head_dim", "group", "dtype", "kv", "features"))
