"""The wheel holds the package and its recorded data, and works where there is no checkout."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.repo.files import ROOT, project_files

DECODE = """
import torch, labkernels
from labkernels import places
from labkernels.records import provenance

assert places.CHECKOUT is None and places.DATA.is_relative_to({target!r}), places.DATA
assert labkernels.__file__.startswith({target!r})
assert provenance.source_state() == ("unknown", False)
torch.manual_seed(0)
q, k, v = (torch.randn(n, h, 64).half() for n, h in ((1, 2), (48, 2), (48, 2)))
ends = [torch.tensor([0, n], dtype=torch.int32) for n in (1, 48)]
out, lse2 = labkernels.attention(q, k, v, *ends, causal=True)
scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) / 8
exact = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double())
worst = float((out.double() - exact).abs().max())
assert 0 < worst < 1e-3, worst
import numpy as np
np.savez("dump.npz", q=q[None, 0], out=out[None, 0], k=k.transpose(0, 1)[None],
         v=v.transpose(0, 1)[None])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a folder with the wheel and the source archive."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Return a folder into which pip has installed the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(folder), str(wheel)], check=True, capture_output=True)
    return folder


def run_installed(folder, *arguments, cwd):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


def in_the_wheel():
    """Yield every file of the package, data/ as labkernels/data, and the widgets' programs."""
    for path in project_files():
        if path.parts[0] == "labkernels":
            yield path.as_posix()
        elif path.parts[0] == "data":
            yield (Path("labkernels") / path).as_posix()
        elif path.parts[:2] == ("book", "widgets"):
            yield Path("labkernels/widgets/page", *path.parts[2:]).as_posix()


def test_the_wheel_holds_the_package_and_its_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    assert {name for name in names if ".dist-info/" not in name} == set(in_the_wheel())
    assert "labkernels/py.typed" in names
    assert {Path(name).name for name in names if "/licenses/" in name} == {
        "LICENSE",
        "LICENSE-text",
    }


def test_the_source_archive_can_build_the_same_wheel(built, wheel, tmp_path):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        # the newest Pythons warn without a filter, and 3.11.3 knows none
        packed.extractall(
            tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    (source,) = tmp_path.iterdir()
    again = tmp_path / "again"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(again)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (second,) = again.glob("*.whl")
    contents = [
        {name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")}
        for archive in map(zipfile.ZipFile, (wheel, second))
    ]
    assert contents[0] == contents[1]


def test_the_wheel_says_what_it_needs_and_links_to_the_repository(wheel):
    files = zipfile.ZipFile(wheel)
    (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
    told = message_from_bytes(files.read(name))
    assert {"gpu", "plots", "audit", "book"} <= set(told.get_all("Provides-Extra"))
    always = [need for need in told.get_all("Requires-Dist") if "extra ==" not in need]
    assert sorted(always) == ["filelock", "numpy", "pyarrow", "threadpoolctl", "torch"]
    targets = re.findall(r"\]\(([^)]+)\)", told.get_payload(decode=True).decode())
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []
    paths = [target.partition("/main/")[2] for target in targets if "/main/" in target]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_importing_the_package_costs_little_beyond_torch():
    code = (
        "import time, torch; start = time.process_time(); import labkernels;"
        "print(time.process_time() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert float(done.stdout) < 0.1


COMMANDS = ("doctor", "scoreboard", "budget decode_mma --gpu h200", "record mla --list")
TELL = f"""
import sys
from labkernels import cli

codes = [(print(f"labkernels {{command}}"), cli.main(command.split()))[1] for command in {COMMANDS}]
sys.exit(max(codes))
"""


@pytest.mark.long
def test_an_installed_wheel_computes_audits_and_tells_what_the_checkout_tells(installed, tmp_path):
    done = run_installed(installed, "-c", DECODE.format(target=str(installed)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run_installed(installed, "-m", "labkernels", "audit", "dump.npz", cwd=tmp_path)
    assert done.stdout.startswith("ROUNDING"), done.stdout + done.stderr
    told = [run_installed(folder, "-c", TELL, cwd=tmp_path) for folder in (installed, ROOT)]
    assert told[0].returncode == 0, told[0].stderr
    assert told[0].stdout == told[1].stdout
    assert [told[0].stdout.count(f"labkernels {command}\n") for command in COMMANDS] == [1] * 4
    describe = ("-m", "labkernels", "record", "--describe")
    done = run_installed(installed, *describe, cwd=tmp_path)
    assert (done.returncode, "allowed: another folder" in done.stderr) == (2, True)
