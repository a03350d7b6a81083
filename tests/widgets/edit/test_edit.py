"""An edit becomes a link, a diff and what a compiler gets; what comes back has its place."""

from pathlib import Path

import node
import pytest

from labkernels.widgets import editing, kernels
from labkernels.widgets.launches import page_launch
from labkernels.widgets.steps import broken

SCRIPTS = Path(__file__).parents[1] / "scripts"
SOURCE = "decode/mma/kernel.cuh"
PAIRS = (("a\nb\nc", "a\nc"), ("a\nb", "a\nx\nb\ny"), ("", "new"), ("a\nb\na\nb", "b\na"))
STOPS = (
    "thread 5: read shared byte 0 at decode/mma/kernel.cuh:46, which no thread wrote",
    "thread 1: write at lab/attention/split_kv.cuh:33, after a read at mma/kernel.cuh:57",
    "a barrier that 31 of 32 threads reach",
)


@pytest.fixture(scope="module")
def entry():
    return editing.data()["kernels"][0]


@pytest.fixture(scope="module")
def found(needs_node, entry):
    plant = entry["plants"][0]
    texts = dict(entry["files"])
    texts[SOURCE] = texts[SOURCE].replace(plant["old"], plant["new"])
    given = {"entry": entry, "texts": texts, "foreign": PAIRS, "stops": STOPS}
    return node.run(SCRIPTS / "edit_of_texts.mjs", given=given)


def test_link_holds_an_edit_and_is_refused_where_it_does_not_fit(found):
    assert found["is_same"]
    assert len(found["fragment"]) < 200
    assert found["plain"] is None
    unreadable, foreign, newer = found["refused"]
    assert "no edit that this page can read" in unreadable
    assert "which this page does not have" in foreign
    assert f"another version of {SOURCE}" in newer


def test_hunks_restore_every_text(found):
    assert all(found["restored"])
    assert found["counts"] == [1, 2, 1, 2]


def test_diff_and_places_name_the_lines_of_the_edit(found, entry):
    plant = entry["plants"][0]
    line = entry["files"][SOURCE].split(plant["old"])[0].count("\n") + 1
    assert f"- {plant['old']}" in found["diff"]
    assert f"+ {plant['new']}" in found["diff"]
    assert found["changed"] == f"You changed {SOURCE}:{line}."
    assert found["places"] == ["load_q_fragment", "scores", "accumulate", "decode"]


def test_compiler_is_loaded_once_and_told_of_a_changed_struct(found, entry):
    assert found["loads"] == 1
    assert found["calls"] == 4  # plain, checked, and twice with the new struct
    assert found["reused"]
    assert found["smem_bytes"] == [entry["launch"]["smem_bytes"], 43024]
    assert found["is_told"] == [True, True]
    assert found["heads"][3] == ["#undef LAB_SMEM_BYTES", "#define LAB_SMEM_BYTES 43024", "#line 1"]
    assert [each["message"] for each in found["error"]] == ["syntx"]


def test_stepper_says_what_it_cannot_show_of_a_changed_struct(found):
    (missing,) = found["missing"]
    assert "buffers have no names" in missing
    (tile,) = found["tiles"]
    assert tile["rows"] * tile["chunks"] * 16 == 43008  # whole rows of 128 bytes
    assert found["rows"] > 0


def test_bits_that_part_are_placed_and_measured(found):
    apart = found["apart"]
    assert (apart["count"], apart["of"], apart["steps"], apart["lse2"]) == (1, 8, 2, 0)
    assert apart["cells"] == [[0, 0], [1, 0]]
    assert apart["first"] == {
        **{"request": 1, "token": 1, "head": 0, "channel": 1},
        **{"here": 6 + 2**-7, "there": 6},
    }
    assert "1 of 8 elements part from the H200's" in found["words"]


def test_words_of_the_checks_mark_lines_of_the_readers_files(found):
    first, second, third = found["found"]
    assert first["places"] == [f"{SOURCE}:46"]
    assert second["places"] == ["lab/attention/split_kv.cuh:33", f"{SOURCE}:57"]
    assert third["places"] == []
    assert all(each["words"] == "The checks stop the kernel." for each in found["found"])


def test_each_planted_mistake_changes_its_lines_and_no_others(entry):
    assert len(entry["plants"]) == len(broken.PARTS) == 12
    for plant in entry["plants"]:
        text = entry["files"][plant["file"]]
        assert text.count(plant["old"]) == 1
        assert plant["old"].count("\n") == plant["new"].count("\n")
        assert plant["new"] != plant["old"]


def test_launch_with_checks_is_of_the_module_that_a_page_compiles():
    offers = {offer.name: offer for offer in kernels.offers()}
    for entry in editing.data()["kernels"][: len(editing.EDITED)]:
        made = page_launch(offers[entry["offer"]].recorded).specialization
        launch = entry["launch"]
        assert (launch["smem_bytes"], launch["threads"]) == (made.smem_bytes, made.threads)
        assert entry["budget"]["smem"]["total"] == made.smem_bytes
        assert entry["reported"]["smem_bytes"] == made.smem_bytes
        assert max(t["byte"] for m in entry["maps"] for t in m["tiles"]) < made.smem_bytes
