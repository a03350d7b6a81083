from labkernels import cli
from labkernels.cuda.compiler import cache


def call(capsys, *arguments):
    code = cli.main(["cache", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_it_is_shown_and_cleared(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LABKERNELS_CACHE", str(tmp_path))
    assert call(capsys) == (0, f"{tmp_path}: 0.0 MiB of 2048.0 MiB\n", "")
    for name in ("kernel-1", "kernel-2", "cubin-1"):
        cache.entry(name, lambda work: bytes(1 << 20))
    (tmp_path / "entries" / "cubin-1").write_bytes(b"damaged")
    code, out, _ = call(capsys)
    assert code == 0
    assert "kernel         2      2.0 MiB" in out
    assert "damaged   cubin-1" in out
    assert call(capsys, "--clear")[1] == f"{tmp_path}: 0.0 MiB of 2048.0 MiB\n"
    assert list((tmp_path / "entries").iterdir()) == []


def test_making_an_entry_may_ask_for_another_one_of_the_same_lock(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKERNELS_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_lock_id", lambda name: "00")

    def outer(work):
        (work / "kept").touch()
        inner = cache.entry("inner", lambda _: b"inner").content
        assert (work / "kept").exists()
        return b"outer, " + inner

    assert cache.entry("outer", outer).content == b"outer, inner"
