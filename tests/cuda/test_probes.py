"""The compiler turns each probe into the instruction that the probe is named for."""

import pytest

from labkernels.cuda.compiler import nvrtc, sass
from tests.cuda.instructions import HEADER, INSTRUCTIONS

missing = nvrtc.available() or sass.available()
pytestmark = pytest.mark.skipif(missing is not None, reason=str(missing))


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=[i.name for i in INSTRUCTIONS])
def test_a_probe_issues_its_instruction_once(instruction):
    compiled = nvrtc.compile_kernel(HEADER, instance=instruction.probe, defines={}, arch="sm_90a")
    assert compiled.report.spill_store_bytes == 0
    assert compiled.report.warnings == ()
    mix = sass.instruction_mix(compiled.cubin)
    eight_bits = instruction.fmt in ("e4m3", "e5m2")
    if instruction.name.startswith("wgmma"):
        assert mix["QGMMA" if eight_bits else "HGMMA"] == 1
    elif eight_bits:
        # Without an 8-bit unit, two halves are multiplied in fp16 and c is added in fp32, as in
        # widened_matmul.
        assert instruction.widened
        assert (mix["HMMA"], mix["F2FP"], mix["FADD"]) == (2, 12, 4)
    else:
        assert mix["HMMA"] == 1


def test_an_older_gpu_has_a_unit_for_8_bits():
    compiled = nvrtc.compile_kernel(
        HEADER, instance="lab::probe_mma<lab::e4m3, float>", defines={}, arch="sm_89"
    )
    mix = sass.instruction_mix(compiled.cubin)
    assert mix["QMMA"] == 1
    assert "F2FP" not in mix
