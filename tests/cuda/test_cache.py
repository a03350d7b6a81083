from pathlib import Path

import pytest

from labkernels.cuda.cache import atomic_write, cache_dir, content_key


def test_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKERNELS_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    assert cache_dir().is_dir()
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


def test_write_replaces_a_file_whole(tmp_path):
    path = tmp_path / "below" / "x.cubin"
    atomic_write(path, b"old")
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.cubin"
    atomic_write(path, b"old")

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        atomic_write(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
