"""`labkernels data`: the recorded rows that are installed, and those of a release."""

import argparse
from pathlib import Path

from labkernels.cli.options import DONE, FAILED

HELP = "recorded rows: check them, fetch those of a release"
DESCRIPTION = """\
A checkout and a wheel hold all recorded rows; `check` compares them with their
description, datapackage.json. `fetch` unpacks the archive of a release into a new
folder, and checks every file against the hash in the archive's description.

examples:
  labkernels data check                                 are the files as described
  labkernels data fetch v0.1.0 --to rows                the rows of a release
  labkernels data fetch --from rows.tar.gz --to rows    those of an archive that lies here
"""


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add what to do, which release, and where to."""
    sub.add_argument("action", choices=("check", "fetch"))
    sub.add_argument("release", nargs="?", help="a release's tag; default: the installed version")
    sub.add_argument("--to", type=Path, default=Path("labkernels-data"), help="a new folder")
    sub.add_argument("--from", dest="source", help="an archive's file or address")


def run(options: argparse.Namespace) -> int:
    """Check the rows, or fetch an archive."""
    import labkernels
    from labkernels.records import archive, datapackage, files

    if options.action == "check":
        wrong = datapackage.differences()
        described = files.read_description(files.DATA_DIR)
        print("\n".join(wrong) or f"{files.DATA_DIR}: {len(described)} files, all as described")
        return FAILED if wrong else DONE
    source = options.source or archive.address(options.release or f"v{labkernels.__version__}")
    count = archive.fetch(source, options.to)
    print(f"{options.to}: {count} files of {source}, all as described")
    return DONE
