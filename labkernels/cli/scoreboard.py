"""`labkernels scoreboard`: targets beside measured values."""

import argparse
from pathlib import Path

from labkernels.cli.options import DONE, FAILED

HELP = "targets beside measurements"
DESCRIPTION = """\
Hold data/targets.toml against the newest recorded rows. A ratio is peer time over
our time within one run; larger is better.

examples:
  labkernels scoreboard
  labkernels scoreboard --strict                        exit code 1 unless all targets are met
"""


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the folder of rows, and whether targets must be met."""
    sub.add_argument("--data", type=Path, default=None, help="folder of rows (default data/)")
    sub.add_argument("--strict", action="store_true", help="exit code 1 unless all are met")


def run(options: argparse.Namespace) -> int:
    """Print the table of targets."""
    from labkernels.records import scoreboard

    scores = scoreboard.scoreboard(data_dir=options.data)
    print(scoreboard.table(scores))
    unmet = any(score.status != scoreboard.MET for score in scores)
    return FAILED if options.strict and unmet else DONE
