import dataclasses

import pytest

from labkernels import hardware
from labkernels.cuda import compile as nvrtc
from labkernels.cuda import device as cuda_device
from labkernels.cuda import host_compiler
from labkernels.measure import machine


def named(checks, name):
    return next(check for check in checks if check.name == name)


@pytest.fixture
def bare(monkeypatch):
    """Hide compilers and GPUs."""

    def no_compiler():
        raise host_compiler.CompilerMissing("no C++20 compiler was found; apt-get install g++")

    monkeypatch.setattr(host_compiler, "compiler", no_compiler)
    monkeypatch.setattr(nvrtc, "available", lambda: "cuda.core cannot be imported")
    monkeypatch.setattr(cuda_device, "live", lambda index=0: None)
    monkeypatch.setattr(cuda_device, "available", lambda index=0: "no NVIDIA GPU can be used")


def live(**changes):
    entry = hardware.gpu("h200")
    fields = {field.name for field in dataclasses.fields(cuda_device.LiveGpu)}
    known = {name: getattr(entry, name) for name in fields if hasattr(entry, name)}
    known |= {"index": 0, "name": "NVIDIA H200", "cuda_version": "13.0"}
    return cuda_device.LiveGpu(**(known | changes))


def test_a_bare_machine_is_told_what_is_missing(bare):
    found = machine.checks()
    assert not machine.works(found)
    assert "apt-get install g++" in named(found, "C++ compiler").detail
    assert "the CPU build will be used" in named(found, "GPU").detail
    able = machine.abilities(found)
    assert not any(check.there for check in able)
    assert "recorded compiler reports" in able[2].detail
    assert "no   run on the CPU" in machine.text(found)


def test_a_compiler_alone_is_enough(bare, monkeypatch):
    compiler = host_compiler.Compiler("/usr/bin/g++", "g++ 12.2.0\nmore")
    monkeypatch.setattr(host_compiler, "compiler", lambda: compiler)
    found = machine.checks()
    assert machine.works(found)
    assert named(found, "C++ compiler").detail == "g++ 12.2.0"


def test_an_old_gpu_falls_back_to_the_cpu_build(bare, monkeypatch):
    old = live(name="NVIDIA T4", arch="sm_75", sm_count=40)
    monkeypatch.setattr(cuda_device, "live", lambda index=0: old)
    monkeypatch.setattr(cuda_device, "available", lambda index=0: cuda_device.unsupported(old))
    found = machine.checks()
    assert "needs sm_80" in named(found, "GPU").detail.replace("need sm_80", "needs sm_80")
    assert "the CPU build will be used" in named(found, "GPU").detail
    assert "has no NVIDIA T4" in named(found, "hardware table").detail


def test_the_table_is_held_against_the_driver(bare, monkeypatch):
    gpu = live()
    monkeypatch.setattr(cuda_device, "available", lambda index=0: None)
    monkeypatch.setattr(cuda_device, "live", lambda index=0: gpu)
    found = machine.checks()
    assert named(found, "hardware table").there
    assert named(found, "GPU").detail == "NVIDIA H200, sm_90, CUDA 13.0"
    wrong = live(l2_bytes=1)
    monkeypatch.setattr(cuda_device, "live", lambda index=0: wrong)
    check = named(machine.checks(), "hardware table")
    assert not check.there
    assert "l2_bytes: table" in check.detail
