"""Files that real tools wrote once are read.

flashinfer-python 0.7.2.post1, sglang 0.5.23, transformers 5.24.0 and safetensors 0.8.0 wrote those
of `samples`; commit c2c6861f is the last that has the functions which let them write.
"""

import json
from pathlib import Path

import pytest

from labkernels.audit.dumps import audit

SAMPLES = Path(__file__).parent / "samples"
PLACES = json.loads((SAMPLES / "places.json").read_text())


@pytest.mark.parametrize("tool", PLACES)
def test_a_file_that_the_tool_wrote_once(tool):
    assert audit(SAMPLES / PLACES[tool]).answer == "ROUNDING"


def test_samples_are_small():
    assert all(x.stat().st_size <= 10_000 for x in SAMPLES.rglob("*") if x.is_file())
