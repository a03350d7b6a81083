"""Diagrams, moving pictures and small figures show what they are given."""

import re

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb

from labkernels.plots.accuracy.detection import seen
from labkernels.plots.primers import fragments, motion
from tests.plots.conftest import ORIGIN


def contrast(one, other):
    """Return the contrast of two colours, by the Web Content Accessibility Guidelines 2.2."""
    luminances = []
    for colour in (one, other):
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)
        ]
        luminances.append(np.dot(linear, (0.2126, 0.7152, 0.0722)))
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def test_numbers_can_be_read_on_every_colour():
    # 4.5 is what WCAG asks of text of this size
    for lane in range(0, 32, 4):
        (axes,) = fragments.owners({"D": np.full((1, 2, 2), (lane, 0))}, origin="here").axes
        (image,), (text,) = axes.images, axes.texts
        ground = image.to_rgba(image.get_array())[0, 0]
        assert contrast(text.get_color(), ground) >= 4.5


EVENTS = [("fetch", 0), ("fetch", 1), ("use", 0), ("fetch", 2), ("use", 1), ("use", 2)]


def timeline(page: str, y: int) -> list[tuple[float, float]]:
    """Return begin and end of the timeline's bars in a row, in units of an event."""
    found = re.findall(rf'<rect x="([\d.]+)" y="{y}.0" width="([\d.]+)"', page)
    return [(float(x) / 100, (float(x) + float(width) + 2) / 100) for x, width in found]


def test_a_copy_lasts_until_its_tile_is_summed():
    page = motion.pipeline(EVENTS, 2, origin="a trace")._repr_html_()
    assert timeline(page, 98) == [(0, 2), (3, 5)]
    assert timeline(page, 128) == [(1, 4)]
    assert timeline(page, 160) == [(2, 3), (4, 5), (5, 6)]
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


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_a_bug_is_seen_where_more_is_off_than_of_the_right_kernel():
    rows = [
        ("decode", bug, "K = 0", "off", out, lse)
        for bug, out, lse in (
            ("", 0.1, 0),
            ("a", 0.1, 0),
            ("b", 0.2, 0),
            ("c", 0.1, 1),
            ("d", 1, 1),
        )
    ]
    columns = ["operation", "bug", "inputs", "tensor_cores", "out", "lse"]
    (axes,) = seen(pd.DataFrame(rows, columns=columns), origin=ORIGIN).axes
    assert texts(axes) == ["–", "out", "LSE", "both"]
