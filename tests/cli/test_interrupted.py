"""A recording that a user or a scheduler ends keeps the rows that were measured."""

import os
import signal
import subprocess
import sys
import time

import pytest

from labkernels import cli
from labkernels.cli import record
from labkernels.cli.record import process
from labkernels.experiments import harness

# A program that sends SIGTERM to its parent, and writes a file 0.5 s after it gets SIGTERM.
WRITES_LATE = """
import os, signal, sys, time
def stop(number, frame):
    time.sleep(0.5)
    open({kept!r}, "w").close()
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(30)
"""


@pytest.fixture(autouse=True)
def handlers_as_before():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_is_an_interruption(capsys, monkeypatch):
    def measure(experiment, options):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        finally:  # where a recording writes its rows
            os.kill(os.getpid(), signal.SIGTERM)
            written.append(True)

    written = []
    monkeypatch.setattr(harness, "record", measure)
    assert cli.main(["record", "decode_tensor_cores"]) == 130
    assert written == [True]
    assert capsys.readouterr().err == "labkernels: interrupted; what was measured before is kept\n"


def test_all_waits_until_the_child_has_written(tmp_path, monkeypatch, capsys):
    kept = tmp_path / "kept"
    start = subprocess.Popen

    def instead(command, **options):
        return start([sys.executable, "-c", WRITES_LATE.format(kept=str(kept))], **options)

    monkeypatch.setattr(process.subprocess, "Popen", instead)
    monkeypatch.setattr(record, "_experiments", lambda asked: ["decode_bits  1 cell"])
    assert cli.main(["record", "--all", "--out", str(tmp_path)]) == 130
    assert kept.exists()
