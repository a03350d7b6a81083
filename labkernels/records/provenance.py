"""Where a recorded number comes from: commit, device, versions, time."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from labkernels import places

UNKNOWN = "unknown"
DIGITS = 10  # of a commit


def source_state(commit: str = "", *, root: Path | None = places.CHECKOUT) -> tuple[str, bool]:
    """Return the commit of the source and whether files outside data/ differ from it.

    A given commit may end in `-dirty`, as `git describe --always --dirty` writes it. If none is
    given and `root` is None or not a git checkout, the commit is UNKNOWN, and files never differ.
    """
    if commit:
        return commit.removesuffix("-dirty")[:DIGITS], commit.endswith("-dirty")
    head = _git(root, "rev-parse", f"--short={DIGITS}", "HEAD") if root else None
    if head is None:
        return UNKNOWN, False
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
