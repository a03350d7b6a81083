"""The probe judged by kernels of others: which mistakes it finds, and where it places them.

A set is a Python file, named by `--peer-path`, with CASES: each has name, layout, dtype, causal,
make() (which returns the function), classes (of labkernels.defects; none for a right kernel), place
(axis: indices) and words. Labels are written before the set is judged.
"""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.probing import Datasheet, probe
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.variant import CAUSAL, FULL

DATA_FILE = "accuracy/probe_sets.parquet"
GROUPS = {"kv_heads", "q_heads", "heads"}


def cells(options: Options) -> Iterator[Cell]:
    """Yield the cases of the set; `quick` has the first two."""
    if options.peer_path is None:
        return
    names = [case.name for case in module_of(options.peer_path).CASES]
    for name in names[:2] if options.quick else names:
        yield Cell(f"{options.peer_path.stem}/{name}", (options.peer_path, name))


def module_of(path: Path) -> Any:
    """Return the module of a set's file."""
    name = f"set_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Yield the row of one case; the first call starts all cases on all cores."""
    row = recording.ahead(judged, cell)
    recording.tell(f"{row['verdict']}, {row['calls']} calls, {row['seconds']:.1f} s")
    yield DATA_FILE, row


def judged(of: tuple[Path, str]) -> Row:
    """Probe one case of a set, and compare what is said with its labels."""
    path, name = of
    (case,) = [case for case in module_of(path).CASES if case.name == name]
    sheet = probe(
        case.make(), case.layout, case.dtype, CAUSAL if case.causal else FULL, name=case.name
    )
    return {
        "set": path.stem,
        "case": case.name,
        "layout": case.layout,
        "dtype": case.dtype,
        "classes": "; ".join(case.classes),
        "place": json.dumps(case.place),
        "words": case.words,
        "calls": sheet.calls,
        "seconds": round(sheet.seconds, 2),
        **_answer(sheet, case),
    }


def _answer(sheet: Datasheet, case: Any) -> Row:
    """Return what the sheet says, and whether its first defect agrees with the labels."""
    answer: Row = {"verdict": sheet.verdict}
    if not sheet.defects:
        return answer | {"sentence": "" if sheet.exit_code == 0 else sheet.reason}
    first = sheet.defects[0]
    answer |= {"found_class": first.kind, "found_where": first.where, "sentence": first.sentence}
    if case.classes:
        answer["class_right"] = first.kind in case.classes
        answer["place_right"] = _placed(first, case.place)
    return answer


def _placed(defect: Any, place: dict[str, Any]) -> bool:
    """Whether a defect names the indices of each axis of a place, as far as its shapes have them.

    A KV head is placed by any of its query heads; keys, channels and rows by an overlap of half.
    """
    for axis, wanted in place.items():
        name = "heads" if axis in GROUPS else axis
        found = getattr(defect, name, None)
        if not isinstance(wanted, list | tuple) or name == "split":
            continue  # words such as "all"
        if found is None:
            return False
        if axis == "kv_heads":
            continue  # which query heads these are depends on the probe's groups
        whole = set(range(*wanted)) if isinstance(wanted, tuple) and len(wanted) == 2 else {*wanted}
        if len(whole & {*found}) < 0.5 * min(len(whole), len(found)):
            return False
    return True


EXPERIMENT = Experiment(
    "probe_sets",
    "The probe judged by wrong and right kernels that others wrote",
    {DATA_FILE: schema.TABLES["probe_sets"]},
    cells,
    rows,
    needs_gpu=False,
    missing=lambda: None,
)
