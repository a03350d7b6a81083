"""Copies of this process: they do some work, and may be killed amid it."""

import os
import signal
from collections.abc import Callable


def start(work: Callable[[], object]) -> int:
    """Start a copy of this process that does the work; return its id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def end(child: int) -> int:
    """Wait for a copy; return its exit code, which is negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(*_: object) -> None:
    """Kill this process, which cannot catch the signal, in place of what it would call."""
    os.kill(os.getpid(), signal.SIGKILL)
