"""A kernel or operation is one folder, a GPU one block, anything else one file; no more changes."""

import os
import re
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
EXPERIMENT = '''
"""A toy: the keys of a request."""

from labkernels.experiments.experiment import Cell, Experiment
from labkernels.records import schema

DATA_FILE = "performance/toy.csv"


def cells(options):
    for kv_len in (16,) if options.quick else (16, 32):
        yield Cell(f"{kv_len} keys", kv_len)


def rows(cell, recording):
    judged = {"mutant": "", "family": "normal", "dtype": "bf16", "rule": "toy"}
    counts = {"runs": 1, "refused": 0, "undecided": 0}
    yield DATA_FILE, {"kernel": "toy", "kv_len": cell.of, **judged, **counts}


EXPERIMENT = Experiment(
    "toy", "How many keys", {DATA_FILE: schema.TABLES["detection"]}, cells, rows, needs_gpu=False
)
'''
PEER = '''
"""A toy: the truth, rounded once."""

import torch

from labkernels.kernels.call import Attention, Step
from labkernels.measure.peers.peer import PEER_POLICY, Peer
from labkernels.numerics.truth import oracle


def decode(inputs):
    truth, _ = oracle.attention(inputs.problem())
    out = torch.empty_like(inputs.q)
    return Step(lambda: out.copy_(torch.from_numpy(truth)), lambda: Attention(out), version="toy 1")


PEERS = (Peer("toy_decode", "toy", "float64", PEER_POLICY, {"decode": decode}, lambda: None),)
BUILDS = {"toy": lambda operation, shapes: f"no compiler for {operation} of {shapes}"}
'''
KERNEL = '''
"""decode_toy: decode_fma under another name."""

from labkernels.kernels.decode.fma.spec import DecodeFma


class Toy(DecodeFma):
    """As its parent."""

    name = "decode_toy"
    idea = "A toy: its parent under another name."
    parent = "decode_fma"


KERNEL = Toy()
'''
COMMAND = '''
"""`labkernels greet`."""

HELP = "say a name"
DESCRIPTION = "Say a name."


def add_options(sub):
    sub.add_argument("name")


def run(options):
    print(f"hello, {options.name}")
    return 0
'''
ADDED = {
    "audit/importers/toy.py": IMPORTER,
    "experiments/accuracy/toy.py": EXPERIMENT,
    "measure/peers/toy.py": PEER,
    "cli/greet.py": COMMAND,
    "kernels/decode/toy/__init__.py": "",
    "kernels/decode/toy/spec.py": KERNEL,
}
COPIED_KERNELS = {"fma", "reference"}


def other_kernels(folder, names):
    """Return the folders of kernels that are not copied."""
    kernels = {name for name in names if (Path(folder) / name / "spec.py").is_file()}
    return kernels - COPIED_KERNELS


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return another folder with the package and its data, and one of each thing added."""
    home = tmp_path_factory.mktemp("copy")
    package = shutil.copytree(
        ROOT / "labkernels", home / "labkernels", ignore=shutil.ignore_patterns("__pycache__")
    )
    (home / "data").symlink_to(ROOT / "data")
    (home / "tests").symlink_to(ROOT / "tests")
    operation = package / "kernels" / "toy"
    shutil.copytree(package / "kernels/decode", operation, ignore=other_kernels)
    (operation / "workload.py").unlink()  # the columns of tables know the workload of decode
    for path in operation.rglob("*.*"):
        text = re.sub(r"kernels\.decode(?!\.workload)", "kernels.toy", path.read_text())
        for old, new in (
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
    for name, text in ADDED.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(text)
    source = (package / "kernels/decode/fma/kernel.cuh").read_text()
    (package / "kernels/decode/toy/kernel.cuh").write_text(
        source.replace("decode_fma", "decode_toy")
    )
    return home


@pytest.mark.long
def test_each_thing_is_added_in_one_place(copy):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 8, 2, 64)).astype(np.float16) for _ in "qkv")
    score = np.einsum("bmhd,bnhd->bhmn", q.astype(float), k.astype(float)) / 8
    weight = np.exp(score - score.max(-1, keepdims=True))
    out = np.einsum("bhmn,bnhd->bmhd", weight / weight.sum(-1, keepdims=True), v.astype(float))
    dump = copy / "dump.toy"
    with dump.open("wb") as file:
        np.savez(file, q=q, k=k, v=v, out=out.astype(np.float16))

    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    done = subprocess.run(
        [sys.executable, *command, "tests/repo/added.py"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
