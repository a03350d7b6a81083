"""Loops without an end and frames past a guard page are reported, and SIGINT ends a launch."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.host.small_kernels import aligned, build, message, place, run

ROOT = Path(__file__).resolve().parents[3]
WITHIN_S = 1.0  # after SIGINT


@pytest.fixture(autouse=True)
def _sigint_is_heard():
    """Handle SIGINT as in a terminal: a shell's background processes ignore this signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def arrays():
    return aligned(np.zeros(64), np.float32), aligned(np.zeros(64), np.float32)


def test_a_frame_past_the_guard_page_is_reported():
    for which in (0, 1 << 14):
        text = message(build("mistakes::leap"), *arrays(), which, threads=64)
        assert "overflows the stack of 65536 bytes that a thread has" in text


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("which", "marker"), [(0, "exchanges for ever"), (1, "calls nothing")])
@pytest.mark.parametrize("checks", [True, False])
def test_a_loop_without_an_end_is_reported(which, marker, checks):
    kernel = build("mistakes::endless", bounded=True, checks=checks)
    text = message(kernel, *arrays(), which, threads=32)
    assert "does not end: its block has taken 268435456 steps" in text
    assert place("mistakes.cuh", marker) in text
    run(kernel, *arrays(), 2, threads=32)  # neither loop runs


def test_a_block_that_waits_for_one_that_failed_is_left():
    """Block 1 starts second, and waits for what block 0 would have written."""
    kernel = build("mistakes::waiting")
    inputs, outputs = arrays()
    text = message(kernel, inputs, outputs, 2, grid=(2, 1, 1), host_threads=2)
    assert "block (0, 0, 0)" in text
    assert "out of bounds" in text


@pytest.mark.parametrize(
    ("kernel", "launch"),
    [
        ("waiting", {"grid": (4, 1, 1), "host_threads": 1}),
        ("waiting", {"grid": (4, 1, 1), "host_threads": 2}),
        ("endless", {}),  # a loop that calls nothing
    ],
)
def test_sigint_ends_a_launch_within_a_second(kernel, launch):
    made, tensors = build(f"mistakes::{kernel}", bounded=kernel == "endless"), arrays()
    for _ in range(2):  # SIGINT ends the next launch, too
        sent = []

        def send(sent=sent):
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.2, send)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            run(made, *tensors, 1, **launch)
        assert time.monotonic() - sent[0] < WITHIN_S
        timer.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_launch_of_another_thread_is_not_ended_by_sigint():
    kernel, outputs = build("mistakes::waiting"), arrays()[1]
    inputs = arrays()[0]
    found = []
    thread = threading.Thread(target=lambda: found.append(message(kernel, inputs, outputs, 1)))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    time.sleep(0.1)
    assert thread.is_alive()
    outputs.view(np.int32)[0] = 1  # what the launch waits for
    thread.join()
    assert "out of bounds" in found[0]


def test_sigint_ends_a_process_that_leaves_it_to_the_system():
    program = """
    import signal, threading, os
    from tests.cuda.host.test_interrupts import arrays
    from tests.cuda.host.small_kernels import build, run
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    run(build("mistakes::waiting"), *arrays(), 1)
    """
    how = {"cwd": ROOT, "timeout": 60, "env": os.environ | {"PYTHONPATH": str(ROOT)}}
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], **how)
    assert ended.returncode == -signal.SIGINT
