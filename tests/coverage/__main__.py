"""Prints which lines of the CPU machine no test ran: python3 -m tests.coverage FOLDER

Run the tests first, with CXX=tests/coverage/cxx.sh and GCOV_PREFIX=FOLDER. A line counts as run if
it ran in any program.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def lines_of(counts: Path) -> list[tuple[str, int, bool]]:
    """Return each line of the machine in one program: its file, its number, and whether it ran."""
    command = ["gcov", "--json-format", "--stdout", str(counts)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:  # a program without notes, or one that was killed while it wrote
        print(f"not counted: {counts}", file=sys.stderr)
        return []
    found = []
    for file in json.loads(done.stdout)["files"]:
        _, ours, name = file["file"].rpartition("lab/host/")
        if ours:
            found += [(name, line["line_number"], line["count"] > 0) for line in file["lines"]]
    return found


def main(folder: Path) -> None:
    """Print each file, the share of its lines that ran, and the lines that did not."""
    ran: dict[str, dict[int, bool]] = defaultdict(dict)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(lines_of, folder.resolve().rglob("*.gcda")):
            for name, number, did in found:
                ran[name][number] = ran[name].get(number, False) or did
    lines = {name: (sum(found.values()), len(found)) for name, found in ran.items()}
    for name, (n_ran, n_all) in sorted(lines.items(), key=lambda item: item[1][0] / item[1][1]):
        missed = ", ".join(str(n) for n, done in sorted(ran[name].items()) if not done)
        print(f"{n_ran / n_all:6.1%} {n_ran:5} of {n_all:5}  {name}  {missed}")
    if not lines:
        print("These tests compiled no program of the machine.")
        return
    n_ran, n_all = (sum(column) for column in zip(*lines.values(), strict=True))
    print(f"{n_ran / n_all:6.1%} {n_ran:5} of {n_all:5}  the machine")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
