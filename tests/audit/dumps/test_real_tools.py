"""Files that the real tools write are read: written here where a tool is installed, and kept."""

import importlib.util
import json
from pathlib import Path

import pytest

from labkernels.audit.dumps import audit
from tests.audit.dumps.real_tools import FLASH, TOOLS

SAMPLES = Path(__file__).parent / "samples"
PLACES = json.loads((SAMPLES / "places.json").read_text())


@pytest.mark.filterwarnings("ignore")  # of modules that are loaded without their package
@pytest.mark.parametrize("tool", TOOLS)
def test_a_file_that_the_tool_writes_now(tool, tmp_path, monkeypatch):
    package, write = TOOLS[tool]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; its kept sample is read in the test below")
    assert audit(write(tmp_path / "right", FLASH, monkeypatch)).answer == "ROUNDING"
    wrong = write(tmp_path / "wrong", lambda call: FLASH(call).flip(1), monkeypatch)
    assert audit(wrong, named=False).answer == "BUG"


@pytest.mark.parametrize("tool", PLACES)
def test_a_file_that_the_tool_wrote_once(tool):
    assert audit(SAMPLES / PLACES[tool]).answer == "ROUNDING"


def test_every_tool_has_a_sample_and_samples_are_small():
    assert list(PLACES) == list(TOOLS)
    assert all(x.stat().st_size <= 10_000 for x in SAMPLES.rglob("*") if x.is_file())
