import pandas as pd
import pytest
from matplotlib.text import Annotation

from labkernels import plots
from labkernels.plots.architecture import not_implied
from tests.plots.conftest import ORIGIN, draw

LAYERS = ["roof", "left | right", "floor | cellar", "ground"]


def rooms():
    rows = [
        {"room": room, "layer": layer, "words": f"in {room}"}
        for layer, names in enumerate(LAYERS)
        for room in names.split(" | ")
    ]
    return pd.DataFrame(rows)


def imports(*pairs):
    return pd.DataFrame(pairs, columns=["importer", "imported"])


def test_an_import_that_others_imply_is_left_out():
    pairs = {("a", "b"), ("b", "c"), ("a", "c"), ("a", "d")}
    assert not_implied(pairs) == {("a", "b"), ("b", "c"), ("a", "d")}


def test_every_room_is_named_and_every_arrow_drawn():
    found = imports(("roof", "left"), ("left", "ground"), ("roof", "ground"), ("right", "cellar"))
    figure = draw(plots.rooms_by_layer(rooms(), found, origin=ORIGIN))
    (axes,) = figure.axes
    written = {text.get_text() for text in axes.texts}
    assert {"roof", "in roof", "cellar", "in ground"} <= written
    arrows = [text for text in axes.texts if isinstance(text, Annotation)]
    assert len(arrows) == 3  # the roof reaches the ground by way of the left
    assert figure.get_supxlabel() == ORIGIN


def test_an_arrow_past_a_layer_goes_around_it():
    figure = plots.rooms_by_layer(rooms(), imports(("left", "ground")), origin=ORIGIN)
    (line,) = figure.axes[0].lines
    assert min(line.get_xdata()) < 0 or max(line.get_xdata()) > 1


@pytest.mark.parametrize("pair", [("ground", "roof"), ("left", "right")])
def test_an_import_that_points_up_is_refused(pair):
    with pytest.raises(ValueError, match=f"{pair[0]} imports {pair[1]}; allowed: imports of"):
        plots.rooms_by_layer(rooms(), imports(pair), origin=ORIGIN)


def test_the_words_of_a_room_stay_in_its_box():
    long = rooms().replace("in right", "accuracy · bench · page · performance · primers")
    figure = draw(plots.rooms_by_layer(long, imports(("left", "ground")), origin=ORIGIN))
    (axes,) = figure.axes
    boxes = [patch.get_window_extent() for patch in axes.patches]
    for text in axes.texts:
        if not isinstance(text, Annotation):
            words = text.get_window_extent()
            assert any(box.x0 < words.x0 and words.x1 < box.x1 for box in boxes), text.get_text()


def test_an_arrow_ends_in_its_own_room_and_stays_behind_the_others():
    found = imports(("left", "cellar"), ("right", "floor"))
    (axes,) = draw(plots.rooms_by_layer(rooms(), found, origin=ORIGIN)).axes
    ends = [text for text in axes.texts if isinstance(text, Annotation)]
    sides = {tuple(at > 0.5 for at in (end.xyann[0], end.xy[0])) for end in ends}
    assert sides == {(False, True), (True, False)}, "each crosses to the other side"
    boxes = {patch.get_zorder() for patch in axes.patches}
    assert max(end.get_zorder() for end in ends) < min(boxes)
