"""The CPU build's compiler and cache survive damage, edits and races, and name what is missing."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from labkernels.cuda import trial
from labkernels.cuda.compiler import cache
from labkernels.cuda.host import build, compiler

HEADER = "inline int answer() { return %d; }\n"
ENTRY = '#include "answer.cuh"\nextern "C" int lab_answer() { return answer(); }\n'
ASK = """
import ctypes, sys
print(ctypes.CDLL(sys.argv[1]).lab_answer())
"""


COMPILE = """
import ctypes
from pathlib import Path
from labkernels.cuda.host import compiler
path = compiler.compile_entry({entry!r}, ["-fPIC"], [Path({sources!r})], Path({runtime!r}))
print(ctypes.CDLL(str(path)).lab_answer())
"""


def compile_elsewhere(place, runtime):
    """Return a script that compiles the entry and prints its answer, for a separate process."""
    return COMPILE.format(entry=ENTRY, sources=str(place), runtime=str(runtime))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder of sources, beside an empty cache."""
    monkeypatch.setenv("LABKERNELS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.cuh").write_text(HEADER % 42)
    return folder


@pytest.fixture
def runtime(tmp_path):
    """Return an empty library to link in place of the runtime."""
    path = tmp_path / "libnothing.so"
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(path)], check=True)
    return path


def library(place, runtime, entry=ENTRY):
    return compiler.compile_entry(entry, ["-std=c++20", "-fPIC", "-O0"], [place], runtime)


def answer(path):
    """Return what the library answers in a separate process, which damage may kill."""
    done = subprocess.run([sys.executable, "-c", ASK, str(path)], capture_output=True, text=True)
    return done.stdout.strip() or f"exit code {done.returncode}"


@pytest.fixture
def compiler_that(tmp_path, monkeypatch):
    """Return a function that makes the compiler do something before each call of some kind."""
    script = tmp_path / "cxx"

    def install(before, *, when="-c"):
        case = f'case "$*" in *{when}*) {before};; esac'
        script.write_text(f'#!/bin/sh\n{case}\nexec {shutil.which("g++")} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return script

    return install


def test_an_edit_while_the_compiler_starts_poisons_nothing(place, runtime, compiler_that):
    header = place / "answer.cuh"
    compiler_that(f"echo 'inline int answer() {{ return 7; }}' > {header}")
    assert answer(library(place, runtime)) == "42"
    assert answer(library(place, runtime)) == "7"
    header.write_text(HEADER % 42)
    assert answer(library(place, runtime)) == "42"


def test_a_warm_cache_needs_no_compiler(place, runtime, monkeypatch):
    path = library(place, runtime)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library(place, runtime) == path
    with pytest.raises(compiler.CompilerMissing, match="no-such-compiler.*install one: "):
        library(place, runtime, ENTRY + "// another\n")


def test_a_compiler_may_be_several_words(place, runtime, monkeypatch):
    monkeypatch.setenv("CXX", "env g++")
    assert compiler.compiler().command[-1] == "g++"
    assert answer(library(place, runtime)) == "42"


def test_a_linker_that_writes_nothing_is_named(place, runtime, compiler_that):
    compiler_that("exit 0", when="-shared")
    with pytest.raises(compiler.CompileError, match="cxx writes no file, but says no error"):
        library(place, runtime)


def test_a_compiler_that_is_gone_after_it_was_found_is_named(
    place, runtime, compiler_that, monkeypatch
):
    script = compiler_that("")
    found = compiler.compiler()
    script.unlink()
    monkeypatch.setattr(compiler, "compiler", lambda: found)
    with pytest.raises(compiler.CompileError, match=r"cxx does not start: No such file"):
        library(place, runtime)


def test_an_include_that_was_not_hashed_does_not_compile(place, runtime):
    (place / "sibling").mkdir()
    (place / "sibling" / "a.cuh").write_text('#include "b.cuh"\n')
    (place / "sibling" / "b.cuh").write_text("// found by no include folder\n")
    with pytest.raises(compiler.CompileError, match=r"b\.cuh"):
        library(place, runtime, '#include "sibling/a.cuh"\n')


def test_a_compiler_that_finds_the_disk_full_is_one_line(place, runtime, compiler_that):
    full = "fatal error: error writing to x.o: No space left on device"
    compiler_that(f"echo '{full}' >&2; exit 1")
    with pytest.raises(cache.CacheError, match=r"\A[^\n]*No space left.*LABKERNELS_CACHE[^\n]*\Z"):
        library(place, runtime)


def test_a_noexec_place_is_one_line(place, runtime, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(cache.CacheError, match=r"\A[^\n]*noexec; set LABKERNELS_CACHE[^\n]*\Z"):
        library(place, runtime)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=16m", "42"),
        ("size=8k", "No space left on device; set LABKERNELS_CACHE"),
        ("ro", "Read-only file system; set LABKERNELS_CACHE"),
        ("noexec", "noexec; set LABKERNELS_CACHE"),
    ],
)
def test_bad_file_systems_are_told_in_one_line(place, runtime, tmp_path, options, words):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("mounting needs root")
    mounted, script = tmp_path / "mounted", tmp_path / "script.py"
    mounted.mkdir()
    script.write_text(compile_elsewhere(place, runtime))
    command = f"mount -t tmpfs -o {options} none {mounted} && exec {sys.executable} {script}"
    environment = {**os.environ, "LABKERNELS_CACHE": str(mounted / "cache")}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, env=environment
    )
    assert words in (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Return `build`'s arguments for a kernel whose runtime was loaded from another cache."""
    asked = {"header": trial.HEADER, "instance": trial.INSTANCE, "params": trial.PARAMS}
    runtime = build.build(**asked).runtime
    monkeypatch.setenv("LABKERNELS_CACHE", str(tmp_path / "cache"))
    entries = tmp_path / "cache" / "entries"
    entries.mkdir(parents=True, mode=0o700)
    shutil.copy(runtime, entries)
    return asked


def test_two_caches_in_one_process(asked, tmp_path):
    kernel = build.build(**asked)
    assert kernel.library.parent == kernel.runtime.parent == tmp_path / "cache" / "entries"
    assert trial.why_not_on_cpu() is None


@pytest.mark.long
def test_a_cache_that_is_cleared_between_two_steps_is_filled_again(asked, monkeypatch):
    compiled, calls = compiler.compile_entry, []

    def cleared(*arguments):
        calls.append(len(calls))
        if calls[-1] == 0:
            cache.clear()  # before the link against the runtime
        library = compiled(*arguments)
        if calls[-1] == 1:
            library.unlink()  # before it is loaded
        return library

    monkeypatch.setattr(build, "compile_entry", cleared)
    kernel = build.build(**asked, defines={"LAB_OTHER": 1})
    assert len(calls) == 3
    assert kernel.library.is_file()
    assert trial.why_not_on_cpu() is None
