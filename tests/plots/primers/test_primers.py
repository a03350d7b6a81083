"""Diagrams show what they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from labkernels.plots.primers import attention, fragments, hopper, locator, machine


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def words(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_an_sm_is_filled_by_the_blocks_that_fit():
    rows = [("registers", 100, 350, "registers", 3), ("warp slots", 4, 64, "warps", 3)]
    columns = ["name", "per_block", "available", "unit", "blocks"]
    figure = machine.sm_with_blocks(pd.DataFrame(rows, columns=columns), origin="here")
    bars = [p for p in figure.axes[0].patches if p.get_facecolor()[:3] != (1, 1, 1)]
    assert len(bars) == 2 * (1 + 3)
    assert "3 × 100 of 350 registers" in words(figure)


def test_a_share_of_work_is_the_runs():
    run = [
        {"warp": 0, "start": 0, "end": 3, "what": "waits"},
        {"warp": 0, "start": 3, "end": 4, "what": "works"},
    ]
    figure = machine.warps_in_time({1: pd.DataFrame(run), 2: pd.DataFrame(run)}, origin="here")
    assert figure.axes[0].get_title(loc="left") == "1 warp: the unit works 25% of the time"


def test_memories_are_as_wide_as_their_bytes():
    levels = pd.DataFrame({"name": ["near", "far"], "words": ["a", "b"], "bytes": [1e4, 1e9]})
    figure = machine.memories(levels, origin="here")
    assert [bar.get_width() for bar in figure.axes[0].patches] == [1e4, 1e9]


def test_a_walk_has_the_maximum_of_each_step():
    steps = {"first": [0, 2], "last": [2, 4], "m": [1.0, 3.0], "l": [1, 2], "rescale": [0, 0.25]}
    figure = attention.walk(np.array([0.0, 1, 2, 3]), pd.DataFrame(steps), origin="here")
    stairs = figure.axes[0].patches[-1].get_data()
    assert stairs.values.tolist() == [1.0, 3.0]


def test_a_page_is_joined_to_its_entry():
    figure = attention.page_table({"a": [2, 0], "b": [3]}, 5, origin="here")
    ends = [tuple(float(x) for x in line.get_xdata()) for line in figure.axes[0].lines]
    assert ends == [(0.5, 2.5), (1.5, 0.5), (4.5, 3.5)]


def test_a_merge_says_its_factors():
    states = pd.DataFrame({"keys": ["x", "y"], "m": [1.0, 3.0], "l": [2.0, 1.0]})
    figure = attention.split_and_merge(states, (3.0, 1.5), origin="here")
    assert {"× 0.25", "× 1.00", "all keys", "m = 3.00, l = 1.50"} <= set(words(figure))


def test_a_timeline_has_each_event():
    events = [("fetch", 0), ("fetch", 1), ("use", 0), ("use", 1)]
    figure = attention.timeline(events, 2, origin="here")
    bars = [(bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in figure.axes[0].patches]
    assert bars == [(0, 2), (1, 2), (2, 1), (2, 1)]  # copies of two tiles do not overlap


def test_a_walk_numbers_the_blocks_that_its_tile_sees():
    pairs = [(0, 0, "some"), (0, 1, "none"), (1, 0, "all"), (1, 1, "some")]
    blocks = pd.DataFrame(pairs, columns=["tile", "block", "seen"])
    for walker, steps in ((0, ["1"]), (1, ["1", "2"])):
        figure = attention.tile_walk(blocks, walker, origin="here")
        assert [text for text in words(figure) if text.isdigit()] == steps


def test_a_stage_is_pale_until_it_is_read():
    events = [(-1, "ask", 0), (-1, "ask", 1), (0, "begin", 0), (1, "begin", 0), (0, "end", 0)]
    events += [(1, "end", 0), (0, "begin", 1), (0, "end", 1)]
    frame = pd.DataFrame(events, columns=["warpgroup", "what", "block"]).assign(of="K")
    figure = hopper.producers_and_consumers(frame, 2, origin="here")
    bars = [
        (bar.get_x(), round(bar.get_y() + 0.36), bar.get_alpha()) for bar in figure.axes[0].patches
    ]
    assert bars == [
        (0, 0, 0.35),
        (2, 0, 1),
        (2, 4, 1),
        (3, 6, 1),
        (1, 1, 0.35),
        (6, 1, 1),
        (6, 4, 1),
    ]


def test_owners_are_written_into_their_places():
    matrix = np.zeros((2, 2, 2), int)
    matrix[1] = (31, 2), (31, 3)
    figure = fragments.owners({"D": matrix}, origin="here")
    assert words(figure) == ["0·0", "31·2,3"]


@pytest.mark.parametrize("lane", range(0, 32, 4))
def test_numbers_can_be_read_on_every_colour(lane):
    # 4.5 is what WCAG asks of text of this size
    matrix = np.full((1, 2, 2), (lane, 0))
    (axes,) = fragments.owners({"D": matrix}, origin="here").axes
    (image,), (text,) = axes.images, axes.texts
    ground = image.to_rgba(image.get_array())[0, 0]
    assert fragments.contrast(text.get_color(), ground) >= 4.5


def test_chunks_can_be_read_on_every_bank():
    places = {"in order": np.tile(np.arange(8), (2, 1))}
    axes = fragments.banks(places, {"in order": 2}, origin="here").axes[0]
    for text, ground in zip(axes.texts, axes.images[0].to_rgba(range(8)), strict=False):
        assert fragments.contrast(text.get_color(), ground) >= (
            3 if text.get_text() == "0" else 4.5
        )


def test_banks_mark_what_one_read_wants():
    places = {"in order": np.tile(np.arange(8), (2, 1))}
    figure = fragments.banks(places, {"in order": 2}, origin="here")
    assert words(figure)[:8] == [str(i) for i in range(8)]
    assert figure.axes[0].get_title(loc="left") == "in order: 2 turns per read"


def test_a_spacing_is_a_staircase_for_each_format():
    steps = pd.DataFrame({"format": ["fp16", "bf16"] * 2, "x": [1, 1, 2, 2], "ulp": [1, 8, 2, 16]})
    assert len(fragments.spacing(steps, origin="here").axes[0].lines) == 2


def test_a_locator_marks_the_parts_that_are_named():
    def marked(here):
        faces = [patch.get_facecolor() for patch in locator.locator(here).axes[0].patches]
        return sum(face[0] - face[2] > 0.1 for face in faces)  # the orange of what runs a kernel

    assert [marked(here) for here in ((), ("registers",), ("SM", "shared memory"))] == [0, 1, 5]
    with pytest.raises(ValueError, match="here has .'tile'."):
        locator.locator(("tile",))
