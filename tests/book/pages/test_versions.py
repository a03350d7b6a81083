"""A page's versions of a figure lose no words, can be read on a phone, and hold the values."""

import re
import xml.etree.ElementTree as ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest
from page_figures import MIME
from versions import flat, narrow, room, versions

from labkernels.plots import style

PHONE_PIXELS, LEAST_PIXELS = 356, 11  # the width of a figure on a phone, and its least font size
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def figure():
    with plt.rc_context(style.HOUSE):
        made, (left, right) = style.new_figure(1, 2, height_inches=2.5)
        left.plot([1, 2, 4], [0.125, 0.441, 2.0], label="mma", marker="o")
        left.set(xlabel="a label that is far too long for a narrow figure", title="times")
        left.legend()
        right.imshow(np.arange(6.0).reshape(2, 3) / 7)
        right.bar([0, 1], [1, 2], bottom=[0.25, 0])
        style.say_origin(made, "measured by a test")
    yield made
    plt.close(made)


@pytest.fixture
def bundle(figure):
    return versions(figure)


def texts(svg):
    return ElementTree.fromstring(svg).iter(f"{SVG}text")


def test_the_figure_itself_stays_as_it_was_and_gives_the_same_bytes(figure, monkeypatch):
    before, n_figures = figure.get_size_inches().tolist(), len(plt.get_fignums())
    first = versions(figure)
    assert figure.get_size_inches().tolist() == before
    assert figure.axes[0].get_legend() is not None
    assert len(plt.get_fignums()) == n_figures
    monkeypatch.setattr(narrow, "lay_out", lambda each: each.draw_without_rendering())
    again = versions(figure)
    for bundle in (first, again):
        assert bundle[MIME].pop("figure")
    assert again == first, "a layout gives what a draw gives"


def test_words_of_a_narrow_figure_are_large_enough_and_all_there(bundle):
    slim = bundle[MIME]["narrow"]
    points = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', slim)[1])
    sizes = [float(x) for x in re.findall(r"font-size: ([\d.]+)px", slim)]
    assert sizes
    assert min(sizes) * PHONE_PIXELS / points >= LEAST_PIXELS
    said = " ".join(text.text for text in texts(slim))
    assert "far too long for a narrow figure" not in [text.text for text in texts(slim)]
    for word in ("far too long", "mma", "times", "measured by a test"):
        assert word in " ".join(said.split())


def test_values_are_said_as_the_axes_name_them(bundle):
    line, cells, bars = bundle[MIME]["series"]
    assert line["name"] == "mma"
    assert line["panel"] == "times"
    assert line["values"] == [["1", "0.125"], ["2", "0.441"], ["4", "2"]]
    assert cells["values"][:4] == [["0", "0", "0"], ["1", "0", "0.1429"], ["2", "0", "0.2857"],
                                   ["0", "1", "0.4286"]]  # fmt: skip
    assert [each[2] for each in bars["values"]] == ["1", "2"]


def test_places_are_those_of_the_drawn_marks(bundle):
    """The markers of the line lie in the SVG where its places say, in both versions."""
    series = bundle[MIME]["series"][0]
    for svg, places in zip(
        (bundle["image/svg+xml"], bundle[MIME]["narrow"]), series["places"], strict=True
    ):
        width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
        markers = re.findall(
            r'<use xlink:href="#\w+" x="([\d.]+)" y="([\d.]+)" style="fill: #0072', svg
        )
        marks = [(float(x) / width, float(y) / height) for x, y in markers]
        wanted = np.reshape(places, (-1, 2)) / 1e4
        for place in wanted:
            assert min(np.abs(np.array(mark) - place).max() for mark in marks) < 2e-3


def test_a_narrow_figure_leaves_its_axes_room(figure):
    """Panels stand below each other; neither legend, title nor a line below takes their room."""
    left = figure.axes[0]
    left.set_title("8 x 2048 on 8 x 2048, 16/16, d128, causal, bf16", loc="left", fontsize=8)
    left.set_yticks([0, 1], ["backward_wgmma ordered", "FlashAttention-2 (torch)"])
    labels = [f"a resource of an SM {i}" for i in range(4)]
    figure.legend(list(left.lines) * 4, labels, loc="outside upper left", ncols=4)
    style.say_origin(figure, "measured on NVIDIA H200, 2026-11-21, commit c5066a654c")
    slim = narrow.made_narrow(figure)
    slim.draw_without_rendering()
    assert [text.get_text() for text in slim.legends[0].get_texts()] == labels
    legend = slim.legends[0].get_window_extent()
    assert legend.width <= slim.bbox.width
    assert legend.y0 > max(axes.get_window_extent().y1 for axes in slim.axes)
    assert slim.axes[0].get_position().y0 > slim.axes[1].get_position().y1
    for axes in slim.axes:
        assert axes.bbox.width > 0.8 * slim.dpi  # inches
        assert not legend.overlaps(axes.bbox)
    assert slim.get_tightbbox().width <= narrow.WIDTH_INCHES + 0.1


def test_words_of_a_narrow_figure_make_room_for_each_other(figure):
    left = figure.axes[0]
    left.text(1, 1, " 0.12345 ms", transform=left.transAxes)
    assert " 0.12345 ms" in [text.text for text in texts(versions(figure)["image/svg+xml"])]
    note = left.annotate("621 TFLOP/s  tensor pipe 66 % of its peak", (1, 1))
    left.set_title("backward_wgmma ordered, on: dq", loc="left")
    left.set_title("dv", loc="right")
    narrow.made_narrow(figure)
    assert note.get_text() == "621 TFLOP/s\ntensor pipe 66 % of its peak"
    assert left.get_title("left").endswith("\n")
    assert left.get_title("right") == "dv"


def test_a_figure_with_words_in_small_cells_keeps_its_width(figure):
    figure.axes[1].text(0, 0, "31·3", fontsize=5)
    bundle = versions(figure)
    wide = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', bundle["image/svg+xml"])[1])
    assert bundle[MIME]["narrow"] == bundle["image/svg+xml"]
    assert bundle[MIME]["pixels"] == pytest.approx(wide * LEAST_PIXELS / 5, abs=2)


def test_a_figure_for_a_slide_is_flat_and_its_rows_do_not_meet(figure):
    drawn = flat(versions(figure)[MIME]["figure"])
    wide, high = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn).groups())
    sizes = [float(x) for x in re.findall(r"font-size: ([\d.]+)px", drawn)]
    assert min(sizes) * min(1240 / wide, 575 / high) >= 18
    with plt.rc_context(style.HOUSE):
        tall, panels = style.new_figure(4, 1, height_inches=7)
        for axes in panels:
            axes.barh([f"kernel {i}" for i in range(6)], range(6))
        room.made_flat(tall)
    rows = {round(axes.get_position().y0, 2) for axes in panels}
    assert len(rows) == 2
    plt.close(tall)
