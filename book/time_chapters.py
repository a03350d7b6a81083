"""Times the chapters as a reader runs them: one at a time, without the figures of the pages.

python book/time_chapters.py [--out FOLDER] [--commit HASH] [NAME ...]

A row per chapter goes to FOLDER/performance/chapters.csv, by default in data/. The first chapter
that needs a kernel also compiles it, unless the cache has it.
"""

import argparse
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import notebook_io
from build import BUILD, one_build

from labkernels.cli.record import process
from labkernels.cuda.gpu import device
from labkernels.experiments.harness import CPU
from labkernels.records import datapackage, provenance, schema, store

DATA_FILE = Path("performance") / "chapters.csv"


def main() -> None:
    args = parse_arguments()
    process.end_on_signals()  # what was timed is kept
    with one_build():
        time_chapters(args.names, args.out, args.commit)


def parse_arguments() -> argparse.Namespace:
    known = [source.stem for source in notebook_io.sources()]
    parser = argparse.ArgumentParser(description="Times the chapters, one at a time.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="chapters; by default all")
    parser.add_argument("--out", type=Path, default=store.DATA_DIR, help="a folder for the rows")
    parser.add_argument("--commit", default="", help="the source's commit, where git is not there")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"no chapter {unknown[0]}; the chapters are {', '.join(known)}")
    return args


def time_chapters(names: list[str], out: Path, commit: str) -> None:
    """Runs chapters, and adds a row for each that ran to its end."""
    notebook_io.use_this_interpreter(BUILD / "timing", for_pages=False)
    source_commit, dirty = provenance.source_state(commit)
    gpu = device.live()
    origin = {
        "started_utc": provenance.utc_text(datetime.now(UTC)),
        "commit": source_commit,
        "dirty": dirty,
        "device": gpu.name if gpu else CPU,
        "cores": os.cpu_count() or 1,
    }
    rows: list[dict[str, object]] = []
    try:
        for source in notebook_io.sources():
            if names and source.stem not in names:
                continue
            started_s = time.monotonic()
            notebook_io.execute(source, for_pages=False)
            seconds = round(time.monotonic() - started_s, 1)
            rows.append(origin | {"chapter": source.stem, "seconds": seconds})
            print(f"{source.stem}: {seconds:.1f} s", flush=True)
    finally:
        # At the end, because a chapter reads data/ as its description has it.
        store.append(out / DATA_FILE, rows, schema.TABLES["chapters"])
        datapackage.write(out)


if __name__ == "__main__":
    main()
