"""`data/targets.toml` held against the newest recorded rows."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkernels.records import store
from labkernels.records.store import Row

MET, NOT_MET, NOT_MEASURED = "met", "NOT MET", "not measured"
_WORKLOAD = ("batch", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size")


@dataclass(frozen=True)
class Target:
    """A ratio of peer to ours that a workload must reach, for each of its dtypes."""

    id: str
    chapter: str
    title: str
    experiment: str
    workload: dict[str, int]
    kernels: tuple[str, ...]
    peers: tuple[str, ...]
    dtypes: tuple[str, ...]
    metric: str
    statistic: str
    minimum_ratio: float


@dataclass(frozen=True)
class Score:
    """One target and dtype with what was measured for it."""

    target: Target
    dtype: str
    status: str
    kernel: str = ""
    ours_s: float = 0.0
    peer: str = ""
    peer_s: float = 0.0
    ratio: float = 0.0
    gpu: str = ""
    commit: str = ""
    started_utc: str = ""
    note: str = ""


def load_targets(path: Path = store.DATA_DIR / "targets.toml") -> list[Target]:
    """Return the targets of a TOML file, in file order.

    Raises: ValueError naming the target and the key that is wrong.
    """
    with Path(path).open("rb") as file:
        document = tomllib.load(file)
    defaults = document.get("defaults", {})
    targets = [_target({**defaults, **entry}) for entry in document.get("target", [])]
    ids = [target.id for target in targets]
    for name in ids:
        if ids.count(name) > 1:
            raise ValueError(f"target id {name!r} occurs twice; ids must differ")
    return targets


def scoreboard(
    targets: Iterable[Target] | None = None, data_dir: Path | None = None
) -> list[Score]:
    """Return one score for each target and dtype; a ratio is always taken within one run."""
    data_dir = store.DATA_DIR if data_dir is None else Path(data_dir)
    targets = load_targets(data_dir / "targets.toml") if targets is None else list(targets)
    rows_of: dict[str, list[Row]] = {}
    for name in {target.experiment for target in targets}:
        path = data_dir / f"{name}.csv"
        rows_of[name] = store.read(path) if path.exists() else []
    return [
        score(target, dtype, rows_of[target.experiment])
        for target in targets
        for dtype in target.dtypes
    ]


def score(target: Target, dtype: str, rows: Iterable[Row]) -> Score:
    """Return the score of the newest run that measured both sides.

    Units: ours_s and peer_s in seconds; ratio is peer over ours, so larger is better.
    """
    rows = store.select(rows, {**target.workload, "dtype": dtype})
    for started in store.runs(rows):
        run = store.select(rows, {"started_utc": started})
        ours = _best(run, target.kernels, target)
        peer = _best(run, target.peers, target)
        if ours is None or (target.peers and peer is None):
            continue
        ratio = float(peer["value"]) / float(ours["value"]) if peer else 0.0
        reached = not target.peers or ratio >= target.minimum_ratio
        return Score(
            target,
            dtype,
            MET if reached else NOT_MET,
            kernel=str(ours["kernel"]),
            ours_s=float(ours["value"]),
            peer=str(peer["kernel"]) if peer else "",
            peer_s=float(peer["value"]) if peer else 0.0,
            ratio=ratio,
            gpu=str(ours["gpu"]),
            commit=str(ours["commit"]) + ("+changes" if ours["dirty"] else ""),
            started_utc=started,
        )
    return Score(target, dtype, NOT_MEASURED, note=_why_not(target, rows))


def table(scores: Iterable[Score]) -> str:
    """Return the scores as a text table, one line each, and a closing count."""
    scores = list(scores)
    header = ("target", "dtype", "ours", "time", "peer", "time", "ratio", "at least", "status")
    lines = [header, *(_line(item) for item in scores)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = [
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    text.insert(1, "  ".join("-" * width for width in widths))
    text += [f"  {item.target.id} {item.dtype}: {item.note}" for item in scores if item.note]
    count = {
        status: sum(item.status == status for item in scores)
        for status in (MET, NOT_MET, NOT_MEASURED)
    }
    text.append(", ".join(f"{number} {status}" for status, number in count.items()))
    return "\n".join(text)


def _target(entry: dict) -> Target:
    name = entry.get("id", "without id")
    fields = Target.__dataclass_fields__
    missing = [key for key in fields if key not in entry]
    unknown = [key for key in entry if key not in fields]
    if missing or unknown:
        raise ValueError(f"target {name}: missing {missing}, unknown {unknown}; keys: {[*fields]}")
    if sorted(entry["workload"]) != sorted(_WORKLOAD):
        keys = [*entry["workload"]]
        raise ValueError(f"target {name}: workload has {keys}; allowed: {[*_WORKLOAD]}")
    lists = {key: tuple(entry[key]) for key in ("kernels", "peers", "dtypes")}
    return Target(**{**entry, **lists})


def _best(rows: list[Row], kernels: tuple[str, ...], target: Target) -> Row | None:
    wanted = store.select(rows, {"metric": target.metric, "statistic": target.statistic})
    measured = [row for row in wanted if row["kernel"] in kernels]
    return min(measured, key=lambda row: float(row["value"]), default=None)


def _why_not(target: Target, rows: list[Row]) -> str:
    words = [
        f"{row['kernel']}: {row['note']}"
        for row in rows
        if row["metric"] in ("refused", "failed") and row["kernel"] in target.kernels + target.peers
    ]
    return "; ".join(dict.fromkeys(words))


def _line(item: Score) -> tuple[str, ...]:
    measured = item.status != NOT_MEASURED
    with_peer = measured and bool(item.peer)
    return (
        item.target.id,
        item.dtype,
        item.kernel,
        f"{item.ours_s * 1e3:.4f} ms" if measured else "",
        item.peer,
        f"{item.peer_s * 1e3:.4f} ms" if with_peer else "",
        f"{item.ratio:.3f}" if with_peer else "",
        f"{item.target.minimum_ratio:g}" if item.target.peers else "runs",
        item.status,
    )
