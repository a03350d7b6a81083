"""The cache of compiled kernels: one file per entry, named by a hash of everything it depends on.

An entry ends in a seal, the checksum of its name and content. An entry that does not match its
seal, or that another user may have written, is made again. Entries are made under a lock, in a work
folder, and appear whole; past LABKERNELS_CACHE_MB mebibytes the least recently used are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

DEFAULT_LIMIT_MB = 2048
ENTRIES, LOCKS, WORK, MUTANTS = "entries", "locks", "work", "mutants"  # folders of the cache
_SEAL = b"\nlabkernels entry sha256:"
_SEAL_BYTES = len(_SEAL) + 64 + 1


class CacheError(RuntimeError):
    """The cache cannot be used; the text is one line that names LABKERNELS_CACHE."""


@dataclass(frozen=True)
class Entry:
    """A verified entry: its file, which ends in the seal, and the content before the seal."""

    path: Path
    content: bytes


def cache_dir() -> Path:
    """Return the folder of compiled kernels, made if it is missing.

    The folder is LABKERNELS_CACHE where that is set, else labkernels in the user's cache folder.

    Raises: CacheError if it cannot be made, or if others may write into it.
    """
    chosen = os.environ.get("LABKERNELS_CACHE")
    base = chosen or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = Path(base).expanduser().absolute()
    except RuntimeError as error:
        raise CacheError(f"no folder for compiled kernels: {error} Set LABKERNELS_CACHE") from None
    return _private(folder if chosen else folder / "labkernels")


def limit_bytes() -> int:
    """Return how many bytes entries may take: LABKERNELS_CACHE_MB mebibytes, by default 2048.

    Raises: ValueError if that is not a whole number >= 1.
    """
    text = os.environ.get("LABKERNELS_CACHE_MB") or str(DEFAULT_LIMIT_MB)
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"LABKERNELS_CACHE_MB is {text!r}; allowed: a whole number from 1")
    return int(text) << 20


def content_key(*parts: str | bytes) -> str:
    """Return 32 hexadecimal digits that change when any part, or the cut between parts, changes."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:32]


def entry(name: str, make: Callable[[Path], bytes]) -> Entry:
    """Return the entry of a name, whose content is make(work folder) where the cache has none.

    If several processes ask for a name, one of them makes the entry. An intact entry is read
    without any write.

    Raises: CacheError for a folder that cannot be written; what `make` raises.
    """
    path = _private(cache_dir() / ENTRIES) / name
    found = _intact(path)
    if found is None:
        with _one_line(), _lock(_lock_id(name)):
            found = _intact(path) or _made(path, make)  # another process may have made it by now
    return found


def newest(prefix: str) -> Entry | None:
    """Return the newest intact entry with this prefix, or None: a fallback without a compiler."""
    paths = _private(cache_dir() / ENTRIES).glob(f"{prefix}*")
    by_age = sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return next((found for path in by_age if (found := _intact(path))), None)


def why_not_writable() -> str | None:
    """Return None where entries can be added, else the reason in one line."""
    name = "trial"
    try:
        with _one_line(), _lock(_lock_id(name)):
            path = _private(cache_dir() / ENTRIES) / name
            _made(path, lambda work: bytes(1 << 20))
            path.unlink(missing_ok=True)
    except CacheError as error:
        return str(error)
    return None


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or nothing, even with several writers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def overlay(texts: Mapping[str, str]) -> Path:
    """Return a folder of changed sources, by name, which stands before the lab's own folders."""
    folder = cache_dir() / MUTANTS / content_key(*texts, *texts.values())
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != text.encode():
            atomic_write(path, text.encode())
    return folder


@dataclass(frozen=True)
class Contents:
    """What a cache holds: number and bytes of its entries by kind, and damaged entries."""

    folder: Path
    kinds: dict[str, tuple[int, int]]
    damaged: tuple[str, ...]
    leftovers: int

    @property
    def n_bytes(self) -> int:
        """The bytes of all intact entries."""
        return sum(size for _, size in self.kinds.values())


def contents() -> Contents:
    """Return what the cache holds; every entry is read and checked against its seal."""
    folder = cache_dir()
    kinds: dict[str, tuple[int, int]] = {}
    damaged = []
    for path in sorted((folder / ENTRIES).glob("*")):
        found = _intact(path, touch=False)
        if found is None:
            damaged.append(path.name)
        else:
            kind = path.name.partition("-")[0]
            count, size = kinds.get(kind, (0, 0))
            kinds[kind] = (count + 1, size + len(found.content) + _SEAL_BYTES)
    return Contents(folder, kinds, tuple(damaged), len(list((folder / WORK).glob("*"))))


def clear() -> None:
    """Remove all entries, mutants' sources and killed builds; builds that are under way go on.

    Raises: CacheError for a folder that cannot be written.
    """
    folder = cache_dir()
    with _one_line():
        for path in (*(folder / ENTRIES).glob("*"), *(folder / MUTANTS).glob("*")):
            _remove(path)
        _sweep(folder / WORK)


def _intact(path: Path, *, touch: bool = True) -> Entry | None:
    """Return the entry, if it matches its seal and no other user can have written it."""
    try:
        # Neither a link nor a pipe, which another user may have made.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(file.fileno())
            data = file.read() if _is_ours(about) else b""
        content = data[:-_SEAL_BYTES]
        if data[-_SEAL_BYTES:] != _seal(path.name, content):
            return None
    except OSError:
        return None
    if touch:  # the time of use, by which entries are evicted; a read-only cache keeps none
        with contextlib.suppress(OSError):
            os.utime(path, ns=(time.time_ns(), about.st_mtime_ns))
    return Entry(path, content)


def _made(path: Path, make: Callable[[Path], bytes]) -> Entry:
    """Make an entry in a work folder and move it to its place; the caller holds its lock."""
    root = _private(cache_dir() / WORK)
    _sweep(root, held=_lock_id(path.name))
    work = Path(tempfile.mkdtemp(prefix=f"{_lock_id(path.name)}-", dir=root))
    try:
        content = make(work)
        part = work / path.name
        part.write_bytes(content + _seal(path.name, content))
        part.chmod(stat.S_IRUSR | stat.S_IWUSR)
        if path.is_dir():  # a folder has this name
            _remove(path)
        part.replace(path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _evict(path.parent, but=path)
    return Entry(path, content)


def _seal(name: str, content: bytes) -> bytes:
    """Return the seal; it covers the name, so that no entry can stand in for another."""
    digest = hashlib.sha256(name.encode() + b"\0")
    digest.update(content)
    return _SEAL + digest.hexdigest().encode() + b"\n"


def _evict(entries: Path, *, but: Path) -> None:
    """Remove the least recently used entries until the rest fits."""
    sizes = {}
    for path in entries.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process evicts too
            sizes[path] = path.stat()
    total = sum(about.st_size for about in sizes.values())
    for path in sorted(sizes, key=lambda path: sizes[path].st_atime_ns):
        if total <= limit_bytes():
            break
        if path != but:
            _remove(path)
            total -= sizes[path].st_size


def _sweep(work: Path, *, held: str = "") -> None:
    """Remove the folders of builds that were killed: no process holds their locks."""
    for left in work.glob("*"):
        lock_id = left.name.partition("-")[0]
        lock = _lock(lock_id)
        if lock.lock_counter > (lock_id == held):  # of an entry whose making asked for this one
            continue
        with contextlib.suppress(Timeout), lock.acquire(timeout=0):
            _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _lock_id(name: str) -> str:
    """Return one of 256 lock files of a cache, which are never removed."""
    return content_key(name)[:2]


def _lock(lock_id: str) -> FileLock:
    """Return a lock that a thread can take again, where making an entry asks for another one."""
    return FileLock(_private(cache_dir() / LOCKS) / f"{lock_id}.lock", is_singleton=True)


def _private(folder: Path) -> Path:
    """Return the folder, made if it is missing; other users must not be able to write into it."""
    with _one_line():
        folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        about = folder.stat()
    if not _is_ours(about):
        raise CacheError(
            f"compiled kernels in {folder} (owner {about.st_uid}, mode {about.st_mode & 0o777:o}) "
            "may be written by others: chmod go-w, or set LABKERNELS_CACHE to a folder of your own"
        )
    return folder


def _is_ours(about: os.stat_result) -> bool:
    mine = about.st_uid in (os.geteuid(), 0)  # root can run any code anyway
    return mine and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Turn an error of the file system into one line that says what to set."""
    try:
        yield
    except OSError as error:
        place = error.filename or os.environ.get("LABKERNELS_CACHE") or "its folder"
        raise CacheError(
            f"compiled kernels cannot be kept in {place}: {error.strerror or error}; "
            "set LABKERNELS_CACHE to a folder that can be written"
        ) from error
