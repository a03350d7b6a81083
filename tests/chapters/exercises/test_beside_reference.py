"""After a right answer `check` compares bits, ledger line and bank conflicts with a reference."""

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest

from book.solutions import solution
from labkernels.chapters import exercises
from labkernels.chapters.exercises import beside_reference, compiled, overlay
from labkernels.chapters.exercises.compiled import Takes
from labkernels.chapters.primers import fragments, pipeline, small_attention
from labkernels.chapters.primers.machine import FOLDER
from labkernels.cuda.compiler import nvrtc, triton
from labkernels.cuda.host import banks
from labkernels.cuda.host.build import HostKernelError

WITHOUT_KERNEL = ("register_ledger", "occupancy_choice", "planted_bug")
# The assignment asks for other lines than the kernel's own.
OTHER_LINES = (
    "maximum",
    "rescale",
    "missing_barrier",
    "two_stages",
    "swizzle",
    "triton_update",
)
WITHOUT_ACCESS = ("wgmma_mask", "ask_for_boxes", "overlap_products")


def said(name, answer=None):
    report = exercises.check(name, answer or solution(name))
    assert report.passed
    return report.lines


def the_line(lines, begins):
    (line,) = (line for line in lines if line.startswith(begins))
    return line


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", exercises.names())
def test_a_right_answer_stands_beside_the_reference(name):
    lines = said(name)
    if name in WITHOUT_KERNEL:
        assert "there are no bits, registers or bank conflicts" in lines[-1]
        return
    bits = the_line(lines, "Bits")
    if name == "rescale":  # its m is not the maximum
        assert re.search(r"Bits: [\d,]+ of 5,775 numbers are not those", bits)
    elif name != "triton_update":  # NumPy adds in another order there
        assert re.fullmatch(r"Bits: all [\d,]+ numbers are those of the reference kernel\.", bits)
    ledgers = [line for line in lines if line.startswith("Ledger of ")]
    assert ledgers
    for line in ledgers:
        if name == "triton_update":
            assert "no lines, since Triton lays out its tiles itself" in line
        else:
            assert re.search(r": \d+ registers? per thread by its lines; ", line)
            assert "of shared memory per block" in line
        if (triton if name == "triton_update" else nvrtc).available() is None:
            given, reference = re.search(
                r"(\d+) by the compiler .*; (\d+) for the ref", line
            ).groups()
            assert given == reference or name in OTHER_LINES
    if name == "triton_update":
        assert "Triton chooses the layout" in the_line(lines, "Bank conflicts")
    elif name in WITHOUT_ACCESS:
        assert "by no lane" in the_line(lines, "Bank conflicts")
    else:
        assert re.match(
            r"Bank conflicts on the CPU machine: (none|[\d,]+ of).*, as for the reference\.",
            the_line(lines, "Bank conflicts"),
        )


def test_a_copy_of_16_bytes_is_one_access():
    """mla_wgmma stores rows by such copies; in copies of 4 bytes, 8 lanes would meet in a bank."""
    line = the_line(said("hand_over_p"), "Bank conflicts")
    assert "machine: none of 1," in line


def test_other_bits_are_counted_in_spacings_of_their_format():
    """An answer that sums in another order is right, but its last bits differ."""
    source = solution("missing_barrier").replace(
        "accumulate(state, smem, warp, lane);",
        "for (int i = keys - 1; i >= 0; --i)\n"
        "      state.o = fma_rn(smem.p[warp][i], smem.v[i][lane], state.o);",
    )
    line = the_line(said("missing_barrier", source), "Bits")
    found = re.search(
        r"Bits: ([\d,]+) of 5,775 numbers are not .* distance is ([\d.e+]+) ulp", line
    )
    assert int(found[1].replace(",", "")) > 0
    assert float(found[2]) >= 1
    one, other = {"out": np.array([1.0, 2.0])}, {"out": np.array([1.0, 2.0 + 2.0**-6])}
    assert "1 of 2 numbers" in beside_reference.bits({"out": "bf16"}, other, one)
    assert "is 1 ulp" in beside_reference.bits({"out": "bf16"}, other, one)
    assert "is 6.55e+04 ulp" in beside_reference.bits({"out": "fp32"}, other, one)


def test_conflicts_of_an_answer_are_counted_and_placed():
    """A right answer also reads a column of V, which is in one bank, in 32 turns."""
    source = solution("missing_barrier").replace(
        "accumulate(state, smem, warp, lane);",
        "accumulate(state, smem, warp, lane);\n    if (smem.v[lane][0] > 1e30f) state.l = 0.f;",
    )
    lines = said("missing_barrier", source)
    at = 1 + source[: source.index("1e30f")].count("\n")
    assert re.search(
        r"machine: [\d,]+ of [\d,]+ turns .*, for the reference none of 185,972",
        the_line(lines, "Bank conflicts"),
    )
    place = the_line(lines, "Most of them")
    taken, least = re.search(r"takes ([\d,]+) turns and could take ([\d,]+)", place).groups()
    assert int(taken.replace(",", "")) == 32 * int(least.replace(",", ""))
    assert f"line {at} of your answer" in place


def test_a_count_is_that_of_the_addresses():
    """The machine counts in C++ what the primer counts from addresses."""
    for place in ("c", "c ^ (row & 7)", "c ^ (row / 2 & 3) * 2", "(c + row) % 8"):
        source = f"LAB_DEVICE int place_of(int row, int c) {{ return {place}; }}"
        folders = (overlay.folder_with("fragments.cuh", "swizzle", source),)
        touched = fragments.swizzled(folders)
        with banks.counted() as turns:
            fragments.swizzled(folders)
        taken = sorted(each.taken for each in banks.by_place(turns).values())
        by_hand = [int(fragments.ways(touched[name]).sum()) for name in ("stores", "reads")]
        assert taken == sorted(by_hand), place
        assert [each.least for each in turns] == [16, 16]


def test_what_no_lane_touches_has_no_turns():
    lines = said("fragment_of_p")
    assert "none, since no lane touches" in the_line(lines, "Bank conflicts")
    assert banks.listed() is None  # counting ends with the check


def test_ledgers_of_the_primers_are_the_sources():
    """The bytes are those of `Smem`: with two fewer, the machine finds an access out of bounds."""
    for kernel, run in (
        (small_attention.ATTEND, lambda: small_attention.attend(small_attention.Request("x"))),
        (pipeline.SUM_UP, lambda: pipeline.run(3)),
        (fragments.SWIZZLED, fragments.swizzled),
    ):
        run()
        less = dataclasses.replace(kernel, smem=SimpleNamespace(total=kernel.smem.total - 2))
        module = next(
            m for m in (small_attention, pipeline, fragments) if kernel in vars(m).values()
        )
        name = next(name for name, value in vars(module).items() if value is kernel)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, less)
            with pytest.raises(HostKernelError, match="out of bounds"):
                run()


def test_a_compiler_that_is_missing_or_refuses_is_said(monkeypatch):
    made = pipeline.SUM_UP.made((FOLDER,))
    monkeypatch.setattr(nvrtc, "available", lambda: "it is not installed")
    takes = compiled.by_nvrtc("sum_up", made, 1)
    assert beside_reference.ledger_line(takes, takes) == (
        "Ledger of sum_up: 1 register per thread by its lines; no compiler is here: it is not "
        "installed; 2,048 B (2.0 KiB) of shared memory per block."
    )

    def refuse(*_, **__):
        raise nvrtc.CompileError("sum_up does not compile: too many words\nand more")

    monkeypatch.setattr(nvrtc, "available", lambda: None)
    monkeypatch.setattr(nvrtc, "compile_kernel", refuse)
    with pytest.raises(compiled.RefusedForGpus, match="compiler refuses sum_up does not compile"):
        compiled.by_nvrtc("sum_up", made, 1)


def test_spills_and_other_registers_are_said():
    mine = Takes("attend", 5, 255, 16, 512, "NVRTC 13 for sm_90a")
    reference = Takes("attend", 5, 61, 0, 512, "NVRTC 13 for sm_90a")
    line = beside_reference.ledger_line(mine, reference)
    assert "255 by the compiler (NVRTC 13 for sm_90a), which adds addresses and loads" in line
    assert "spills 16 bytes; 61 for the reference; 512 B" in line
