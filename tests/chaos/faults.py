"""Faults to inject into files, into a process's system calls, and into whole processes."""

import errno
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

DENIALS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT)
# System calls that Python's audit hooks see, and that a full or failing disk may refuse.
CALLS = {"open", "os.rename", "os.mkdir", "os.chmod", "os.utime", "os.remove", "os.listdir",
         "os.scandir", "os.rmdir", "os.symlink", "shutil.copyfile", "shutil.move"}  # fmt: skip


@dataclass
class _Armed:
    place: str
    left: int
    act: Callable[[str], None]


_armed: list[_Armed] = []
_listening: list[bool] = []


def _listen(event: str, arguments: tuple) -> None:
    if not _armed or event not in CALLS:
        return
    paths = [os.fsdecode(a) for a in arguments if isinstance(a, (str, bytes, os.PathLike))]
    if any(path.startswith(_armed[-1].place) for path in paths):
        _armed[-1].left -= 1
        if _armed[-1].left == 0:
            _armed[-1].act(paths[0])


class At:
    """Calls `act` at the n-th system call, within this context, that names a path in a place."""

    def __init__(self, place: Path, n: int, act: Callable[[str], None]) -> None:
        self._armed = _Armed(str(place), n, act)

    def __enter__(self) -> "At":
        if not _listening:  # an audit hook stays for the life of a process
            sys.addaudithook(_listen)
            _listening.append(True)
        _armed.append(self._armed)
        return self

    def __exit__(self, *_: object) -> None:
        _armed.pop()


def denial(rng: random.Random) -> Callable[[str], None]:
    """Return an action that refuses a system call with an error of `DENIALS`."""
    code = rng.choice(DENIALS)

    def refuse(path: str) -> None:
        raise OSError(code, os.strerror(code), path)

    return refuse


def kill(_path: str) -> None:
    """Kill this process, which cannot catch the signal."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at_line(work: Callable[[], object], file: str, n: int) -> None:
    """Do the work, and kill this process before the n-th line of a file that it runs."""
    left = [n]

    def line(frame, event, _):
        left[0] -= event == "line"
        if left[0] == 0:
            kill("")
        return line

    sys.settrace(lambda frame, *_: line if frame.f_code.co_filename.endswith(file) else None)
    work()


def killed_child(
    rng: random.Random, work: Callable[[], object], place: Path, file: str, lines: int
) -> None:
    """Do the work in a copy of this process, which is killed at a call or at a line of a file."""
    if rng.random() < 0.5:
        with At(place, rng.randint(1, lines // 6), kill):
            child = in_child(work)
    else:
        child = in_child(partial(killed_at_line, work, file, rng.randint(1, lines)))
    assert ended(child) in (0, -signal.SIGKILL)


def in_child(work: Callable[[], object]) -> int:
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


def ended(child: int) -> int:
    """Wait for a copy; return its exit code, which is negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def damage(path: Path, rng: random.Random) -> str:
    """Cut, flip, fill, lengthen or remove a file; return what was done."""
    data = path.read_bytes()
    at = rng.randrange(len(data)) if data else 0
    how = rng.choice(("cut", "flip", "zeros", "noise", "longer", "empty", "gone"))
    if how == "gone":
        path.unlink()
    elif how == "flip" and data:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
    else:
        length = rng.randint(1, 4096)
        made = {
            "cut": data[:at],
            "zeros": data[:at] + bytes(min(length, len(data) - at)) + data[at + length :],
            "noise": data[:at] + rng.randbytes(min(length, len(data) - at)) + data[at + length :],
            "longer": data + rng.randbytes(length),
        }
        path.write_bytes(made.get(how, b""))
    return how


def plant(path: Path, rng: random.Random, elsewhere: Path) -> str:
    """Put something else where a file was; return what."""
    how = rng.choice(("folder", "link", "pipe", "open to all"))
    if how == "open to all":
        path.chmod(0o666)
        return how
    shutil.move(path, elsewhere)
    if how == "folder":
        (path / "below").mkdir(parents=True)
    elif how == "link":
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    return how


@dataclass
class Tally:
    """Counts right results and refusals in one line, and lists the faults of labkernels."""

    seed: int
    counts: Counter = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def judge(self, name: str, use: Callable[[], bool], refusals: tuple, sign: str = "") -> None:
        """Count an injection and its outcome; `use` says whether the result is right."""
        self.counts["injections"] += 1
        where = f"seed {self.seed}, injection {self.counts['injections']} ({name})"
        try:
            right = use()
        except refusals as refusal:
            one_line = "\n" not in str(refusal).strip() and sign in str(refusal)
            self.counts["refused"] += one_line
            if not one_line:
                self.faults.append(f"{where}: refused, but not in one line: {refusal}")
        except Exception as error:
            self.faults.append(f"{where}: traceback of {error!r}")
        else:
            self.counts["right"] += right
            if not right:
                self.faults.append(f"{where}: wrong without a word")

    def require(self, name: str, use: Callable[[], bool]) -> None:
        """List a fault unless `use` says that all is right again after an injection."""
        where = f"seed {self.seed}, after injection {self.counts['injections']} ({name})"
        try:
            if not use():
                self.faults.append(f"{where}: stays wrong")
        except Exception as error:
            self.faults.append(f"{where}: stays unusable: {error!r}")
