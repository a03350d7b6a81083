import pytest

from labkernels.cuda.compiler import live_ranges, nvrtc, sass
from labkernels.measure import resources

pytestmark = [
    pytest.mark.skipif(nvrtc.available() is not None, reason=str(nvrtc.available())),
    pytest.mark.skipif(sass.available() is not None, reason=str(sass.available())),
]


def compiled(arch):
    spec = resources.find("decode_mma")
    instance = spec.instance(spec.shape(head_dim=128, group=4), tile="4x16x3x2")
    return spec.registers(instance), resources.compile_instance(instance, arch=arch)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_the_widest_point_is_nearly_all_that_the_kernel_claims(arch):
    held, made = compiled(arch)
    found = live_ranges.widest(made.cubin)
    assert sum(found.uses.values()) == found.alive
    # Some registers stay empty, since those of a load lie side by side. A list without one of the
    # ledger's larger lines, as the accumulator or the addresses, lacks 16 registers or more.
    assert made.report.registers - 16 < found.alive <= made.report.registers
    assert held.total <= found.alive


def test_the_accumulator_and_the_fragments_are_where_the_ledger_says():
    held, made = compiled("sm_100a")
    found = live_ranges.widest(made.cubin)
    lines = {line.name: line.amount for line in held.lines}
    # The widest point is in P V, where O is summed while V's fragments are loaded.
    assert found.instruction.startswith("LDSM")
    assert found.uses["sums"] == lines["O accumulator"]
    assert found.uses["operands"] >= lines["K or V fragment"]


def test_what_cannot_be_listed_is_said(monkeypatch):
    with pytest.raises(RuntimeError, match="refuses the kernel"):
        live_ranges.widest(b"no machine code")
    monkeypatch.setattr(sass, "disassembler", lambda: None)
    with pytest.raises(RuntimeError, match="cuobjdump is neither"):
        live_ranges.widest(b"")
