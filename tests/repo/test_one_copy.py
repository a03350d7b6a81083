"""A new operation is one folder, a GPU one block, an importer one file; nothing else changes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.repo.files import ROOT

GPU = """
[gpu.toy]
name = "A toy of one hundred SMs"
arch = "sm_90"
sm_count = {value = 100, unit = "SMs", source = "h200_driver", date = 2026-11-21}
l2_bytes = {value = 62914560, unit = "bytes", source = "h200_driver", date = 2026-11-21}
dram_bytes = {value = 151397597184, unit = "bytes", source = "h200", date = 2026-11-21}
dram_bytes_per_s = {value = 4.8e12, unit = "bytes/s", source = "h200", date = 2026-11-21}
boost_clock_hz = {value = 1.98e9, unit = "Hz", source = "h200_clock", date = 2026-11-21}
fp32_flops = {value = 67e12, unit = "FLOP/s", source = "h200", date = 2026-11-21}
tensor_fp16_flops = {value = 989.5e12, unit = "FLOP/s", source = "h200", date = 2026-11-21}
tensor_fp32_accumulate_rate = {value = 1.0, unit = "ratio", source = "h100", date = 2026-11-21}
"""
IMPORTER = '''
"""A toy: NumPy arrays under other suffixes."""

import numpy as np

FORMAT = ".toy"
SOURCE = "here"


def takes(path):
    return path.suffix == ".toy"


def read(path, take):
    with np.load(path) as arrays:
        return dict(arrays)
'''
# The program that runs in the copy, beside the tests.
ASKED = """
import json, sys
import pytest
from labkernels import cli, hardware
from labkernels.audit import importers
from labkernels.kernels.operation import operations
from labkernels.kernels.registry import discover, kernels_of
from labkernels.measure.benchmark import benchmark
from labkernels.measure.implementation import implementations
from tests import fake_gpu

operation = operations()["toy"]
fake_gpu.install(pytest.MonkeyPatch())
kernels = implementations("toy")
work = operation.workload((5, 0, 40), 4, 2, 64, 16, "bf16")
how = {"repeats": 3, "seed": 0, "device": "cpu", "graph": True}
result = benchmark(operation, work, [kernels["toy_fma"]], **how)
found = {
    "kernels": list(kernels_of("toy")),
    "header": discover()["toy_fma"].header,
    "bits": len(list(operation.bit_cases(discover()["toy_fma"]))),
    "reasons": result.reasons,
    "bound_ratio": result.measured["toy_fma"].errors.bound_ratio,
    "gpu": [hardware.gpu("toy").sm_count, "toy" in hardware.GPUS],
    "formats": [module.FORMAT for module in importers.importers()],
}
print(json.dumps(found), flush=True)
codes = [
    cli.main(["budget", "toy_fma", "--head-dim", "64", "--gpu", "toy"]),
    cli.main(["audit", sys.argv[1]]),
]
print(codes)
"""
COPIED_KERNELS = {"fma", "reference"}


def other_kernels(folder, names):
    """Return the folders of kernels that are not copied."""
    kernels = {name for name in names if (Path(folder) / name / "spec.py").is_file()}
    return kernels - COPIED_KERNELS


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return another folder with the package and its data, and three things added."""
    home = tmp_path_factory.mktemp("copy")
    package = shutil.copytree(
        ROOT / "labkernels", home / "labkernels", ignore=shutil.ignore_patterns("__pycache__")
    )
    (home / "data").symlink_to(ROOT / "data")
    (home / "tests").symlink_to(ROOT / "tests")
    operation = package / "kernels" / "toy"
    shutil.copytree(package / "kernels/decode", operation, ignore=other_kernels)
    for path in operation.rglob("*.*"):
        text = path.read_text()
        for old, new in (
            ("kernels.decode", "kernels.toy"),
            ("decode_fma", "toy_fma"),
            ('name = "reference"', 'name = "toy_reference"'),
            ('"decode"', '"toy"'),
            ("blocks_per_sm) decode(", "blocks_per_sm) toy("),
            ('"decode/', '"toy/'),
        ):
            text = text.replace(old, new)
        path.write_text(text)
    with (package / "hardware/gpus.toml").open("a") as file:
        file.write(GPU)
    (package / "audit/importers/toy.py").write_text(IMPORTER)
    return home


def test_an_operation_a_gpu_and_an_importer_are_each_added_in_one_place(copy):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 8, 2, 64)).astype(np.float16) for _ in "qkv")
    score = np.einsum("bmhd,bnhd->bhmn", q.astype(float), k.astype(float)) / 8
    weight = np.exp(score - score.max(-1, keepdims=True))
    out = np.einsum("bhmn,bnhd->bmhd", weight / weight.sum(-1, keepdims=True), v.astype(float))
    dump = copy / "dump.toy"
    with dump.open("wb") as file:
        np.savez(file, q=q, k=k, v=v, out=out.astype(np.float16))

    done = subprocess.run(
        [sys.executable, "-c", ASKED, str(dump)],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, *reports, codes = done.stdout.splitlines()
    found = json.loads(first)
    assert found["kernels"] == ["toy_reference", "toy_fma"]
    assert found["header"] == "toy/fma/kernel.cuh"
    assert found["bits"] > 0
    assert found["reasons"] == []
    assert 0 < found["bound_ratio"] < 1
    assert found["gpu"] == [100, True]
    assert ".toy" in found["formats"]
    assert reports[0].startswith("toy_fma for A toy of one hundred SMs")
    assert any("EXACT" in line or "ROUNDING" in line for line in reports)
    assert codes == "[0, 0]"
