import dataclasses
import shutil

import numpy as np
import pytest

from labkernels import hardware
from labkernels.cli import doctor
from labkernels.cuda import trial
from labkernels.cuda.compiler import nvrtc
from labkernels.cuda.gpu import device as cuda_device
from labkernels.cuda.host import build
from labkernels.cuda.host import compiler as host_compiler
from labkernels.experiments import durations


def named(checks, name):
    return next(check for check in checks if check.name == name)


def is_live(monkeypatch, gpu, missing=None):
    monkeypatch.setattr(cuda_device, "live", lambda index=0: gpu)
    monkeypatch.setattr(cuda_device, "available", lambda index=0: missing)


@pytest.fixture
def no_gpu(monkeypatch):
    is_live(monkeypatch, None, "no NVIDIA GPU can be used")
    monkeypatch.setattr(nvrtc, "available", lambda: "cuda.bindings cannot be imported")


@pytest.fixture
def bare(monkeypatch, no_gpu):
    """Hide compilers and GPUs."""

    def no_compiler():
        raise host_compiler.CompilerMissing("no C++20 compiler was found; apt-get install g++")

    monkeypatch.setattr(host_compiler, "compiler", no_compiler)


def live(**changes):
    entry = hardware.gpu("h200")
    fields = {field.name for field in dataclasses.fields(cuda_device.LiveGpu)}
    known = {name: getattr(entry, name) for name in fields if hasattr(entry, name)}
    known |= {"index": 0, "name": "NVIDIA H200", "cuda_version": "13.0"}
    return cuda_device.LiveGpu(**(known | changes))


def test_a_bare_machine_is_told_what_is_missing_and_a_compiler_is_enough(bare, monkeypatch):
    found = doctor.checks()
    assert not doctor.works(found)
    assert "apt-get install g++" in named(found, "C++ compiler").detail
    assert "the CPU build will be used" in named(found, "GPU").detail
    newest = max(row["started_utc"] for row in durations.read())
    assert newest in named(found, "recorded runs").detail
    able = doctor.abilities(found)
    assert not any(check.there for check in able)
    assert "recorded compiler reports" in able[2].detail
    assert "no   run on the CPU" in doctor.text(found)
    compiler = host_compiler.Compiler(("/usr/bin/g++",), "g++ 12.2.0\nmore")
    monkeypatch.setattr(host_compiler, "compiler", lambda: compiler)
    monkeypatch.setattr(trial, "why_not_on_cpu", lambda: None)
    found = doctor.checks()
    assert doctor.works(found)
    assert named(found, "C++ compiler").detail == "g++ 12.2.0"


def test_a_gpu_is_held_against_the_table_and_an_old_one_falls_back(bare, monkeypatch):
    old = live(name="NVIDIA T4", arch="sm_75", sm_count=40)
    is_live(monkeypatch, old, cuda_device.unsupported(old))
    found = doctor.checks()
    assert "NVIDIA T4 is sm_75; the kernels need sm_80" in named(found, "GPU").detail
    assert "the CPU build will be used" in named(found, "GPU").detail
    assert "has no NVIDIA T4" in named(found, "hardware table").detail
    monkeypatch.setattr(trial, "why_not_on_gpu", lambda arch: None)
    is_live(monkeypatch, live())
    found = doctor.checks()
    assert named(found, "hardware table").there
    assert named(found, "GPU").detail == "NVIDIA H200, sm_90, CUDA 13.0"
    is_live(monkeypatch, live(l2_bytes=1))
    check = named(doctor.checks(), "hardware table")
    assert not check.there
    assert "l2_bytes: table" in check.detail


def wrapper(folder, script):
    """Return a compiler that says its version, and then does what the script says."""
    path = folder / "cxx"
    gcc = shutil.which("g++")
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {gcc} --version\n{script}\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def has_gcc(no_gpu):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo 'cc1plus: error: unrecognized option -std=c++20' >&2; exit 1",
            "unrecognized option",
        ),
        ("exit 1", "cxx fails with exit code 1: no message"),
        ("exit 0", "cxx writes no file, but says no error"),
        ("kill -SEGV $$", "cxx fails with exit code -11"),
    ],
)
def test_a_compiler_that_only_says_its_version_is_found_out(
    has_gcc, tmp_path, monkeypatch, script, words
):
    monkeypatch.setenv("LABKERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(wrapper(tmp_path, script)))
    found = doctor.checks()
    assert not doctor.works(found)
    check = named(found, "C++ compiler")
    assert words in check.detail
    assert "\n" not in check.detail


def test_a_cache_that_cannot_be_written_is_found_out(has_gcc, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKERNELS_CACHE", str(tmp_path / "file"))
    found = doctor.checks()
    assert not doctor.works(found)
    for name in ("compile cache", "C++ compiler"):
        assert not named(found, name).there
        assert "LABKERNELS_CACHE" in named(found, name).detail


def test_a_missing_table_is_found_out(has_gcc, monkeypatch):
    """A wheel without data/ has no coefficients of the hardware's exponential."""
    runtime = build._load_runtime(build.build(trial.HEADER, **PROBE).runtime)
    runtime.lab_set_ex2(None)
    try:
        check = doctor._host_compiler()
    finally:
        build._give_ex2(runtime)
    assert not check.there
    assert "coefficients of the hardware's exponential" in check.detail


PROBE = {"instance": trial.INSTANCE, "params": trial.PARAMS}


def test_wrong_results_are_found_out():
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    assert trial._why_wrong(x, np.exp2(x)) is None
    for wrong in (np.exp2(x) * np.float32(1.0001), x * np.nan, np.zeros_like(x)):
        assert "wrong results" in trial._why_wrong(x, wrong)


def test_nvrtc_is_tried(bare, monkeypatch):
    monkeypatch.setattr(nvrtc, "available", lambda: None)
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(trial, "why_not_compiled", lambda arch: f"{arch} is unknown")
    check = named(doctor.checks(), "NVRTC")
    assert not check.there
    assert check.detail == f"NVRTC 13.0: {hardware.ARCHS[0]}: {hardware.ARCHS[0]} is unknown"
