"""The end of a chaos run reports the number of injected faults."""

import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from labkernels.records import datapackage, provenance, schema, store
from tests.chaos.faults import Tally

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book"))


@pytest.fixture
def tally(seed, record_property):
    """Yield the judge of a test's injections; any fault of labkernels fails the test."""
    tally = Tally(seed)
    yield tally
    counts = {name: tally.counts[name] for name in ("injections", "right", "refused")}
    record_property("chaos", counts | {"seed": seed, "wrong": len(tally.faults)})
    assert not tally.faults, "\n".join(tally.faults)


def pytest_addoption(parser):
    parser.addoption("--record", type=Path, help="a data folder that gets the figures of chaos")


def pytest_terminal_summary(terminalreporter, config):
    total, rows = Counter(), []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "teardown":
                found = [counts for name, counts in report.user_properties if name == "chaos"]
                suite = report.location[2].partition("[")[0].removeprefix("test_")
                rows += [counts | {"suite": suite.replace("_", " ")} for counts in found]
    for row in rows:
        total.update({name: n for name, n in row.items() if name not in ("suite", "seed")})
    folder = config.getoption("--record")
    if folder and rows:
        record(folder, rows)
    if total:
        terminalreporter.write_line(
            f"chaos: {total['injections']} injections, {total['right']} results right, "
            f"{total['refused']} refused in one line"
        )


def record(folder, rows):
    """Write the counts into a data folder, in place of the counts of the run before."""
    commit, _ = provenance.source_state("")
    origin = {"commit": commit, "started_utc": provenance.utc_text(datetime.now(UTC))}
    path = folder / "accuracy" / "chaos.csv"
    rows = sorted(rows, key=lambda row: (row["suite"], row["seed"]))
    store.replace(path, [row | origin for row in rows], schema.TABLES["chaos"])
    datapackage.write(folder, [path])
