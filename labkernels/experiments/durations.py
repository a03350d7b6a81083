"""How long experiments take: a recording notes its duration, and the next one prints it."""

from collections.abc import Iterable
from pathlib import Path

from labkernels.records import schema, store
from labkernels.records.store import Row

DATA_FILE = "performance/recordings.csv"


def write(out: Path, origin: Row, cells: int, seconds: float) -> Path:
    """Add the row of a recording that measured all of its cells, once, and return the file."""
    row = {name: origin[name] for name in schema.TABLES["recordings"].columns if name in origin}
    row |= {"cells": cells, "seconds": round(seconds, 1)}
    if row not in read(out):
        store.append(out / DATA_FILE, [row], schema.TABLES["recordings"])
    return out / DATA_FILE


def read(data_dir: Path | None = None) -> list[Row]:
    """Return the recordings of a data folder, oldest first."""
    path = (store.DATA_DIR if data_dir is None else data_dir) / DATA_FILE
    return store.read(path, described=False) if path.exists() else []


def estimate(name: str, cells: int, rows: Iterable[Row]) -> float | None:
    """Return the seconds that a number of cells would take, or None without a recording.

    The estimate is in proportion to the newest of the recordings with the most cells.
    """
    known = [row for row in rows if row["experiment"] == name]
    if not known:
        return None
    best = max(known, key=lambda row: (row["cells"], row["started_utc"]))
    return best["seconds"] * cells / best["cells"]


def expected(name: str, cells: int) -> str:
    """Return the estimate as text."""
    return words(estimate(name, cells, read()))


def words(seconds: float | None) -> str:
    """Return a duration as text: "about 4 min", or "not yet measured"."""
    if seconds is None:
        return "not yet measured"
    if seconds < 100:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min"
