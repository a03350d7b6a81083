import pytest

from labkernels.budget import Ledger, Line, compiler, number, symbol
from labkernels.budget.compiler import EDGE, FITS, HABITS, KEPT, MERGE, SPILLS, Asked, predict

HELD = Ledger("a kernel", "registers", (Line("O", symbol("R", 16, "rows") * 128 / 32),))
LOOP = Asked({"copies": number(8, "copies"), "loaded ahead": number(32)})


def made(asked=LOOP, *, arch="sm_90", limit=255, thread_limit=None):
    return predict(HELD, asked, arch=arch, limit=limit, thread_limit=thread_limit)


def test_what_is_needed_is_held_and_added_line_by_line():
    found = made()
    names = [line.name for line in found.ledger.lines]
    assert names == ["O", KEPT[9], "copies", "loaded ahead"]
    assert compiler.operands(number(144)).value == compiler.AHEAD_MAX  # those in flight are few
    assert compiler.operands(number(16)).value == 16
    kept, copies = HABITS[KEPT[9]].registers, HABITS["copies"].registers
    assert found.registers == 64 + kept + int(8 * copies) + 32 * HABITS["loaded ahead"].registers


@pytest.mark.parametrize(
    ("arch", "generation"),
    [("sm_80", 8), ("sm_89", 8), ("sm_90a", 9), ("sm_100", 10), ("sm_120", 10)],
)
def test_an_architecture_has_the_compiler_of_its_generation(arch, generation):
    assert made(arch=arch).ledger.lines[1].name == KEPT[generation]


def test_a_limit_cuts_what_is_added_and_not_what_is_held():
    free = made()
    capped = made(limit=free.registers - 8)
    assert capped.registers == free.registers - 8
    assert [free.answer, capped.answer] == [FITS, EDGE]
    assert made(limit=64 + 16).answer == SPILLS
    assert made(limit=64 + 23).answer == EDGE


def test_the_merge_of_splits_is_a_floor():
    merges = Asked({}, merges_splits=True)
    assert made(merges).registers == HABITS[MERGE].registers > made(Asked({})).registers
    assert made(merges, limit=96).registers == 96
    assert [made(merges, limit=limit).answer for limit in (96, 110)] == [EDGE, FITS]


def test_warps_that_trade_registers_are_compiled_for_the_limit():
    found = made(limit=168, thread_limit=232)
    assert found.registers == 168
    assert found.answer == FITS
    assert made(limit=168, thread_limit=80).answer == SPILLS
