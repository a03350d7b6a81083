"""Compares `data/targets.toml` with the newest recorded rows."""

import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path

from labkernels.records import profiles, store
from labkernels.records.store import Row

MET, NOT_MET, NOT_MEASURED = "met", "NOT MET", "not measured"
_WORKLOAD = ("batch", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size")
_PREFILL = (*_WORKLOAD, "q_len", "causal")


@dataclass(frozen=True)
class Target:
    """What a workload must reach in each of its dtypes: a ratio of peer to ours, or a value.

    maximum: an upper limit on our value, in the unit of the metric; None for no limit.
    policy and peer_policy: the numeric policy on either side, as in data/; "" for any. without:
    rows whose note has this text do not count, as of another cache. beside: of a target without
    peers, kernels of the same run of which the fastest is profiled beside ours.
    """

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
    minimum_ratio: float = 0.0
    maximum: float | None = None
    policy: str = ""
    peer_policy: str = ""
    without: str = ""
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """One target and dtype with what was measured for it; ours and theirs are in `unit`.

    sides: the timed rows of our kernel, and of the peer or what is profiled beside ours. profiles:
    of a target that is missed, the counters of both, by name.
    """

    target: Target
    dtype: str
    status: str
    kernel: str = ""
    ours: float = 0.0
    peer: str = ""
    theirs: float = 0.0
    unit: str = "s"
    ratio: float = 0.0
    gpu: str = ""
    commit: str = ""
    started_utc: str = ""
    note: str = ""
    sides: tuple[Row, ...] = ()
    profiles: dict[str, dict[str, float]] = field(default_factory=dict)


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
    """Return one score for each target and dtype; a ratio is always taken within one run.

    >>> scores = [score for score in scoreboard() if score.status == MET]
    >>> all(score.ratio >= score.target.minimum_ratio for score in scores)
    True
    """
    data_dir = store.DATA_DIR if data_dir is None else Path(data_dir)
    targets = load_targets(data_dir / "targets.toml") if targets is None else list(targets)
    rows_of: dict[str, list[Row]] = {}
    for name in {target.experiment for target in targets}:
        path = store.path_of(name, data_dir)
        rows_of[name] = store.read(path) if store.lying(path) else []
    path = store.path_of(profiles.FILE, data_dir)
    counters = store.read(path) if store.lying(path) else []
    return [
        _with_profiles(score(target, dtype, rows_of[target.experiment]), counters)
        for target in targets
        for dtype in target.dtypes
    ]


def score(target: Target, dtype: str, rows: Iterable[Row]) -> Score:
    """Return the score of the newest run that measured both sides.

    The ratio is peer over ours, of absolute values since a bias has a sign, so that larger is
    better.
    """
    rows = store.select(rows, {**target.workload, "dtype": dtype})
    rows = [row for row in rows if not target.without or target.without not in row["note"]]
    for started in store.runs(rows):
        run = store.select(rows, {"started_utc": started})
        ours = _best(run, target.kernels, target.policy, target)
        peer = _best(run, target.peers, target.peer_policy, target)
        if ours is None or (target.peers and peer is None):
            continue
        ratio = abs(float(peer["value"]) / float(ours["value"])) if peer else 0.0
        other = _best(run, target.beside, "", target) if peer is None else peer
        reached = not target.peers or ratio >= target.minimum_ratio
        if target.maximum is not None:
            reached = reached and float(ours["value"]) <= target.maximum
        return Score(
            target,
            dtype,
            MET if reached else NOT_MET,
            kernel=str(ours["kernel"]),
            ours=float(ours["value"]),
            peer=str(peer["kernel"]) if peer else "",
            theirs=float(peer["value"]) if peer else 0.0,
            unit=str(ours["unit"]),
            ratio=ratio,
            gpu=str(ours["gpu"]),
            commit=str(ours["commit"]) + ("+changes" if ours["dirty"] else ""),
            started_utc=started,
            sides=tuple(row for row in (ours, other) if row is not None),
        )
    return Score(target, dtype, NOT_MEASURED, note=_why_not(target, rows))


def table(scores: Iterable[Score]) -> str:
    """Return the scores as a text table, one line each, and a closing count."""
    scores = list(scores)
    header = ("target", "dtype", "ours", "value", "peer", "value", "ratio", "asked", "status")
    lines = [header, *(_line(item) for item in scores)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = [
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    text.insert(1, "  ".join("-" * width for width in widths))
    text += [f"  {item.target.id} {item.dtype}: {item.note}" for item in scores if item.note]
    text += [line for item in scores for line in _profile_lines(item)]
    count = {
        status: sum(item.status == status for item in scores)
        for status in (MET, NOT_MET, NOT_MEASURED)
    }
    text.append(", ".join(f"{number} {status}" for status, number in count.items()))
    return "\n".join(text)


def _target(entry: dict) -> Target:
    name = entry.get("id", "without id")
    fields = Target.__dataclass_fields__
    missing = [key for key, of in fields.items() if key not in entry and of.default is MISSING]
    unknown = [key for key in entry if key not in fields]
    if missing or unknown:
        raise ValueError(f"target {name}: missing {missing}, unknown {unknown}; keys: {[*fields]}")
    if set(entry["workload"]) not in ({*_WORKLOAD}, {*_PREFILL}):
        keys, more = [*entry["workload"]], "and for a prefill q_len and causal"
        raise ValueError(f"target {name}: workload has {keys}; allowed: {[*_WORKLOAD]}, {more}")
    keys = ("kernels", "peers", "dtypes", "beside")
    lists = {key: tuple(entry[key]) for key in keys if key in entry}
    return Target(**{**entry, **lists})


def _with_profiles(item: Score, counters: list[Row]) -> Score:
    operation = profiles.OPERATIONS.get(item.target.experiment)
    if item.status != NOT_MET or operation is None:
        return item
    workload = {**item.target.workload, "dtype": item.dtype}
    found = {}
    for row in item.sides:
        name, cache = str(row["kernel"]), profiles.cache_of(str(row["note"]))
        columns = profiles.cache_column(name, *cache), profiles.peer_column(name, operation)
        for column in columns:
            if values := profiles.counted(counters, workload, column):
                found[name] = values
    return replace(item, profiles=found)


def _best(rows: list[Row], kernels: tuple[str, ...], policy: str, target: Target) -> Row | None:
    wanted = store.select(rows, {"metric": target.metric, "statistic": target.statistic})
    measured = [row for row in wanted if row["kernel"] in kernels]
    if policy:
        measured = [row for row in measured if row["policy"] == policy]
    return min(measured, key=lambda row: abs(float(row["value"])), default=None)


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
        _value(item.ours, item.unit) if measured else "",
        item.peer,
        _value(item.theirs, item.unit) if with_peer else "",
        f"{item.ratio:.3f}" if with_peer else "",
        _asked(item),
        item.status,
    )


def _profile_lines(item: Score) -> list[str]:
    """Return one line per kernel of a missed target: what the kernel spends its time on."""
    names = [f"{name}: {profiles.sentence(values)}" for name, values in item.profiles.items()]
    return [f"  {item.target.id} {item.dtype}, profile of {line}" for line in names]


def _asked(item: Score) -> str:
    if item.target.maximum is not None:
        return f"at most {_value(item.target.maximum, item.unit)}"
    return f"at least {item.target.minimum_ratio:g}" if item.target.peers else "runs"


def _value(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1e3:.4f} ms"
    return f"{value:.3g}" if unit == "1" else f"{value:.3g} {unit}"
