"""Where a recorded number comes from: commit, device, versions, time."""

import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from labkernels.records.schema import PROVENANCE, parse

ROOT = Path(__file__).resolve().parents[2]
_DEVICE_FACTS = ("gpu", "driver", "cuda", "torch", "triton", "sm_clock_mhz", "power_w")


def collect(
    device: Mapping[str, object],
    *,
    seed: int,
    repeats: int,
    commit: str = "",
    started: datetime | None = None,
    root: Path = ROOT,
) -> dict[str, object]:
    """Return the provenance columns of a row.

    `device` holds the facts that need torch or a driver; `commit` stands in where there is no git.
    Raises: ValueError if a fact is missing, or no commit is known.
    """
    unknown = [name for name in device if name not in _DEVICE_FACTS]
    if unknown:
        raise ValueError(f"device has {unknown[0]!r}; allowed: {', '.join(_DEVICE_FACTS)}")
    hash_text, dirty = source_state(commit, root=root)
    facts = {
        **device,
        "commit": hash_text,
        "dirty": dirty,
        "seed": seed,
        "repeats": repeats,
        "started_utc": utc_text(started or datetime.now(UTC)),
    }
    return {field.name: parse(field, facts.get(field.name)) for field in PROVENANCE}


def source_state(commit: str = "", *, root: Path = ROOT) -> tuple[str, bool]:
    """Return the commit of the source and whether files outside data/ differ from it.

    A given commit may end in `-dirty`, as `git describe --always --dirty` writes it.
    Raises: ValueError if none is given and `root` is no git checkout with a commit.
    """
    if commit:
        return commit.removesuffix("-dirty"), commit.endswith("-dirty")
    head = _git(root, "rev-parse", "--short=10", "HEAD")
    if head is None:
        raise ValueError(
            f"commit is unknown: {root} is no git checkout with a commit; "
            "allowed: --commit HASH, as `git describe --always --dirty` prints it"
        )
    # Recording changes data/ itself, so those files do not make the source dirty.
    changes = _git(root, "status", "--porcelain", "--", ".", ":!data")
    return head, changes != ""


def utc_text(moment: datetime) -> str:
    """Return a moment as text in UTC, to the second: 2026-12-01T09:30:00Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
