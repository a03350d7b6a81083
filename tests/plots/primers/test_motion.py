"""Moving pictures show what a trace or addresses say, and stand still for readers who ask."""

import re

import numpy as np

from labkernels.plots.primers import motion

EVENTS = [("fetch", 0), ("fetch", 1), ("use", 0), ("fetch", 2), ("use", 1), ("use", 2)]


def bars(page: str, y: int) -> list[tuple[float, float]]:
    """Return begin and end of the timeline's bars in a row, in units of an event."""
    found = re.findall(rf'<rect x="([\d.]+)" y="{y}.0" width="([\d.]+)"', page)
    return [(float(x) / 100, (float(x) + float(width) + 2) / 100) for x, width in found]


def test_a_copy_lasts_until_its_tile_is_summed():
    page = motion.pipeline(EVENTS, 2, origin="a trace")._repr_html_()
    assert bars(page, 98) == [(0, 2), (3, 5)]
    assert bars(page, 128) == [(1, 4)]
    assert bars(page, 160) == [(2, 3), (4, 5), (5, 6)]
    assert page.count("scaleY(1)") == 3


def test_a_read_takes_as_many_turns_as_the_busiest_place_has_rows():
    rows = np.arange(8)
    places = {"in order": rows * 128, "swizzled": rows * 128 + rows * 16}
    shown = motion.turns_of_a_read(places, origin="addresses")
    assert "in order, the rows are read in 8 turns" in shown.still
    assert "swizzled, the rows are read in 1 turn." in repr(shown)
    assert "in order: 8 turns" in shown._repr_html_()


def test_motion_can_be_paused_and_is_not_forced_on_anybody():
    page = motion.pipeline(EVENTS, 2, origin="<1>")._repr_html_()
    assert 'type="checkbox"> Pause' in page
    assert "prefers-reduced-motion: reduce" in page
    assert 'aria-label="3 tiles go through 2 stages.' in page
    assert "&lt;1&gt;" in page
    assert "<script" not in page
