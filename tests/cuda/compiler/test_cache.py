"""Entries of the cache of compiled kernels are sealed, made once, private, and bounded in size."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkernels.cuda.compiler import cache
from labkernels.cuda.compiler.cache import CacheError, atomic_write, cache_dir, content_key

NAME = "cubin-0123-1"
ONE_LINE = "[^\n]*LABKERNELS_CACHE[^\n]*"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKERNELS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def content(_work):
    return b"machine code\n" * 9


def make_nothing(_work):
    raise AssertionError("the entry is there")


def test_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKERNELS_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    assert cache_dir().is_dir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKERNELS_CACHE", "kernels")  # the same folder from everywhere
    assert cache_dir() == tmp_path / "kernels"
    monkeypatch.delenv("LABKERNELS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "labkernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "labkernels"


def test_key_depends_on_every_part_and_cut():
    keys = {content_key(*parts) for parts in [("a", "b"), ("ab",), ("ab", ""), ("b", "a"), ()]}
    assert len(keys) == 5
    assert content_key("é") == content_key("é".encode())


def test_write_replaces_a_file_whole_or_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "below" / "x.cubin"
    atomic_write(path, b"old")
    atomic_write(path, b"new")

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        atomic_write(path, b"newer")
    monkeypatch.undo()
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_an_entry_is_made_once_and_is_private(folder):
    made = cache.entry(NAME, content)
    assert made.content == content(None)
    assert cache.entry(NAME, make_nothing) == made
    assert made.path.read_bytes().startswith(made.content)
    for path in (folder, *folder.rglob("*")):
        assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH), path
    assert list((folder / "work").iterdir()) == []


@pytest.mark.parametrize("planted", ["link", "pipe", "writable", "folder's"])
def test_what_others_may_have_written_is_not_used(folder, tmp_path, planted):
    path = cache.entry(NAME, content).path
    if planted == "link":
        path.rename(tmp_path / NAME)
        path.symlink_to(tmp_path / NAME)
    elif planted == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif planted == "writable":
        path.chmod(0o666)
    elif os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        pytest.skip("only root can give a file away")
    assert cache.entry(NAME, lambda work: b"ours").content == b"ours"
    assert path.is_file()
    assert not path.is_symlink()


DAMAGED = {
    "cut": lambda data: data[:-9],
    "a bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"more",
    "another's": lambda data: cache.entry("other", content).path.read_bytes(),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_entry_is_made_anew(folder, how):
    path = cache.entry(NAME, content).path
    path.write_bytes(DAMAGED[how](path.read_bytes()))
    assert cache.contents().damaged == (NAME,)
    assert cache.entry(NAME, lambda work: b"anew").content == b"anew"
    assert cache.contents().damaged == ()


def no_home(place, monkeypatch):
    def without_home(path):
        raise RuntimeError("Could not determine home directory.")

    for name in ("LABKERNELS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", without_home)
    return "Could not determine home directory."


def open_to_others(place, monkeypatch):
    place.chmod(0o777)
    return "mode 777"


def of_somebody_else(place, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(place, 12345, 12345)
    return "owner 12345"


def no_folder(place, monkeypatch):
    monkeypatch.setenv("LABKERNELS_CACHE", f"{__file__}/below")
    return ""


@pytest.mark.parametrize("where", [".", "entries"])
@pytest.mark.parametrize("spoil", [no_home, open_to_others, of_somebody_else, no_folder])
def test_a_folder_that_cannot_be_used_is_told_in_one_line(folder, monkeypatch, spoil, where):
    cache.entry(NAME, content)
    words = spoil(folder / where, monkeypatch)
    with pytest.raises(CacheError, match=rf"\A{ONE_LINE}\Z") as told:
        cache.entry(NAME, content)
    assert words in str(told.value)


def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(folder):
    def make(work):
        (work / "half.o").write_bytes(b"half")
        raise OSError(28, "No space left on device", str(work / "half.o"))

    with pytest.raises(CacheError, match=rf"\A[^\n]*No space left on device; set {ONE_LINE}\Z"):
        cache.entry(NAME, make)
    assert list((folder / "work").iterdir()) == list((folder / "entries").iterdir()) == []


def test_a_read_only_cache_that_is_warm_works(folder):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    made = cache.entry(NAME, content)
    folders = (folder, folder / "entries", folder / "locks", folder / "work")
    for path in folders:
        path.chmod(0o500)
    try:
        assert cache.entry(NAME, make_nothing) == made
        with pytest.raises(CacheError, match=ONE_LINE):
            cache.entry("cubin-other", content)
    finally:
        for path in folders:
            path.chmod(0o700)


def test_the_least_recently_used_entries_go(folder, monkeypatch):
    monkeypatch.setenv("LABKERNELS_CACHE_MB", "1")
    for name in "abc":
        cache.entry(name, lambda work: b"x" * 300_000)
        time.sleep(0.01)  # file times have a limited resolution
    cache.entry("a", make_nothing)
    time.sleep(0.01)
    cache.entry("d", lambda work: b"x" * 300_000)
    assert sorted(path.name for path in (folder / "entries").iterdir()) == ["a", "c", "d"]
    cache.entry("e", lambda work: b"x" * 2_000_000)
    assert [path.name for path in (folder / "entries").iterdir()] == ["e"]


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_limit_that_is_none_is_refused(folder, monkeypatch, text):
    monkeypatch.setenv("LABKERNELS_CACHE_MB", text)
    with pytest.raises(ValueError, match="LABKERNELS_CACHE_MB is .*; allowed: a whole number"):
        cache.entry(NAME, content)


SCRIPT = """
import sys, time
from pathlib import Path
from labkernels.cuda.compiler import cache
def make(work):
    (work / "half.o").write_text("half")
    with open(sys.argv[2], "a") as file:
        file.write("made\\n")
    time.sleep(float(sys.argv[3]))
    return b"one"
print(cache.entry(sys.argv[1], make).content)
"""


def start(name, log, seconds):
    command = [sys.executable, "-c", SCRIPT, name, str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def end(process):
    process.kill()
    process.communicate()


def test_four_processes_make_an_entry_once(folder, tmp_path):
    log = tmp_path / "log"
    processes = [start(NAME, log, 0.3) for _ in range(4)]
    assert [process.communicate()[0] for process in processes] == ["b'one'\n"] * 4
    assert log.read_text() == "made\n"


def test_what_a_killed_build_left_goes_with_the_next_one(folder, tmp_path):
    log = tmp_path / "log"
    killed, living = start("killed", log, 60), start("living", log, 60)
    deadline = time.monotonic() + 60  # two processes import the package and start to build
    while not log.exists() or log.read_text().count("made") < 2:
        assert time.monotonic() < deadline, "two builds at once do not both start"
        time.sleep(0.01)
    end(killed)
    assert cache.contents().leftovers == 2
    cache.entry(NAME, content)
    assert cache.contents().leftovers == 1
    assert cache.entry("killed", content).content == content(None)
    assert living.poll() is None
    end(living)
    cache.clear()
    assert cache.contents().leftovers == 0


def test_contents_and_clear(folder):
    for name in ("kernel-1", "kernel-2", "runtime-1"):
        cache.entry(name, content)
    found = cache.contents()
    assert {kind: count for kind, (count, _) in found.kinds.items()} == {"kernel": 2, "runtime": 1}
    assert found.n_bytes == sum(path.stat().st_size for path in (folder / "entries").iterdir())
    (folder / "not ours").mkdir()
    cache.clear()
    assert (folder / "not ours").exists()
    assert cache.contents().kinds == {}
    assert cache.entry("kernel-1", content).content == content(None)
