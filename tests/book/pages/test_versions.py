"""A page's versions of a figure lose no words, can be read on a phone, and hold the values."""

import re
import xml.etree.ElementTree as ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest
from page_figures import MIME
from versions import narrow, versions

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


def test_the_figure_itself_stays_as_it_was(figure):
    before = figure.get_size_inches().tolist()
    n_figures = len(plt.get_fignums())
    versions(figure)
    assert figure.get_size_inches().tolist() == before
    assert figure.axes[0].get_legend() is not None
    assert len(plt.get_fignums()) == n_figures


def test_the_same_figure_gives_the_same_bytes(figure, bundle):
    assert versions(figure) == bundle


def test_a_layout_gives_the_versions_that_a_draw_gives(figure, bundle, monkeypatch):
    monkeypatch.setattr(narrow, "lay_out", lambda each: each.draw_without_rendering())
    assert versions(figure) == bundle


def test_a_figure_without_an_engine_is_laid_out_by_a_draw(figure, monkeypatch):
    drawn = []
    monkeypatch.setattr(figure, "draw_without_rendering", lambda: drawn.append(figure))
    narrow.lay_out(figure)
    assert drawn == []
    figure.set_layout_engine(None)
    narrow.lay_out(figure)
    assert drawn == [figure]


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


def test_panels_of_a_narrow_figure_stand_below_each_other(figure):
    slim = narrow.made_narrow(figure)
    first, second = (axes.get_position() for axes in slim.axes[:2])
    assert first.y0 > second.y1


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


def test_numbers_of_the_text_keep_their_digits(figure):
    figure.axes[0].text(1, 1, " 0.12345 ms", transform=figure.axes[0].transAxes)
    assert " 0.12345 ms" in [text.text for text in texts(versions(figure)["image/svg+xml"])]


def test_a_legend_that_is_too_wide_has_fewer_columns(figure):
    lines = list(figure.axes[0].lines) * 4
    labels = [f"a resource of an SM {i}" for i in range(4)]
    figure.legend(lines, labels, loc="outside upper left", ncols=4)
    slim = narrow.made_narrow(figure)
    slim.draw_without_rendering()
    (legend,) = slim.legends
    assert [text.get_text() for text in legend.get_texts()] == labels
    assert legend.get_window_extent().width <= slim.bbox.width


@pytest.mark.filterwarnings("error:constrained_layout")
def test_a_panel_keeps_its_width_below_a_wide_legend():
    with plt.rc_context(style.HOUSE):
        made, (axes,) = style.new_figure(height_inches=2.5)
        for number in range(4):
            axes.plot([1, 2], [1, number], marker="o", label=f"of head {number}")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, markerscale=3)
        marker = axes.get_legend().legend_handles[0].get_markersize()
        versions(made)
        slim = narrow.made_narrow(made)
    assert slim.axes[0].get_position().width * slim.get_figwidth() > 2
    assert slim.axes[0].get_legend().legend_handles[0].get_markersize() == marker
    plt.close(made)


def test_a_legend_outside_of_the_panels_stays_outside(figure):
    lines = list(figure.axes[0].lines) * 4
    labels = [f"a resource of an SM {i}" for i in range(4)]
    figure.legend(lines, labels, loc="outside upper left", ncols=4)
    slim = narrow.made_narrow(figure)
    slim.draw_without_rendering()
    panels = [axes.get_window_extent() for axes in slim.axes]
    assert slim.legends[0].get_window_extent().y0 > max(box.y1 for box in panels)


def test_a_narrow_figure_leaves_its_axes_room(figure):
    """Neither a legend, nor a title, nor a line below takes the room of the axes."""
    left = figure.axes[0]
    left.set_title("8 x 2048 on 8 x 2048, 16/16, d128, causal, bf16", loc="left", fontsize=8)
    left.set_yticks([0, 1], ["backward_wgmma ordered", "FlashAttention-2 (torch)"])
    labels = [f"a resource of an SM {i}" for i in range(3)]
    figure.legend(list(left.lines) * 3, labels, loc="outside upper left", ncols=3)
    style.say_origin(figure, "measured on NVIDIA H200, 2026-11-21, commit c5066a654c")
    slim = narrow.made_narrow(figure)
    slim.draw_without_rendering()
    legend = slim.legends[0].get_window_extent()
    for axes in slim.axes:
        assert axes.bbox.width > 0.8 * slim.dpi  # inches
        assert not legend.overlaps(axes.bbox)
    assert slim.get_tightbbox().width <= narrow.WIDTH_INCHES + 0.1


def test_a_note_that_takes_half_of_a_narrow_figure_has_two_lines(figure):
    note = figure.axes[0].annotate("621 TFLOP/s  tensor pipe 66 % of its peak", (1, 1))
    narrow.made_narrow(figure)
    assert note.get_text() == "621 TFLOP/s\ntensor pipe 66 % of its peak"


def test_a_title_goes_above_the_title_that_it_would_cover(figure):
    figure.axes[0].set_title("backward_wgmma ordered, on: dq", loc="left")
    figure.axes[0].set_title("dv", loc="right")
    narrow.made_narrow(figure)
    assert figure.axes[0].get_title("left").endswith("\n")
    assert figure.axes[0].get_title("right") == "dv"


def test_a_figure_with_words_in_small_cells_keeps_its_width(figure):
    figure.axes[1].text(0, 0, "31·3", fontsize=5)
    bundle = versions(figure)
    wide = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', bundle["image/svg+xml"])[1])
    assert bundle[MIME]["narrow"] == bundle["image/svg+xml"]
    assert bundle[MIME]["pixels"] == pytest.approx(wide * LEAST_PIXELS / 5, abs=2)


def test_a_name_that_is_broken_has_even_lines_without_a_single_word_at_the_end():
    with plt.rc_context(style.HOUSE):
        made, (axes,) = style.new_figure(height_inches=2.0)
        axes.set_yticks([0], ["a kernel with a very long name"])
        axes.set_xlabel("blocks on an SM that each resource leaves, whatever the others leave")
        axes.set_ylabel("products / exponentials, in clocks of one SM")
        name = narrow.made_narrow(made).axes[0].xaxis.label.get_text().splitlines()
        beside = made.axes[0].yaxis.label
        assert len(name) > 1
        assert min(map(len, name)) > max(map(len, name)) / 2
        assert beside.get_window_extent().height <= made.bbox.height
        assert " ".join(beside.get_text().split()) == "products / exponentials, in clocks of one SM"
        assert "exponentials," in beside.get_text().split()
    plt.close(made)
