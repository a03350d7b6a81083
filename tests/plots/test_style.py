"""Kernels have colours of their own, and the picture of the rooms shows what imports what."""

import itertools
import re

import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from labkernels import plots
from labkernels.kernels.registry import discover
from labkernels.plots import style
from labkernels.records import store
from tests.plots.conftest import ORIGIN
from tests.repo.files import ROOT

TIMED = ["backward", "decode_tensor_cores", "mla", "numeric_policies", "prefill"]
CEILINGS = {"copy", "read"}  # drawn as lines, in no kernel's colour


def meet():
    """Return pairs that a figure may show together, since one experiment has timed both."""
    pairs = set()
    for table in TIMED:
        names = {row["kernel"] for row in store.read(table)} - CEILINGS
        names = sorted(name for name in names if " " not in name)
        pairs |= set(itertools.combinations(names, 2))
    return sorted(pairs)


def luminance_and_blue(colour):
    """Return two quantities that red-green colour-blind eyes still see."""
    red, green, blue = to_rgb(colour)
    return 0.3 * red + 0.59 * green, blue


def test_colours_differ_without_telling_red_from_green():
    pairs = meet()
    assert len(pairs) > 100
    seen = {name: luminance_and_blue(style.colour(name)) for pair in pairs for name in pair}
    alike = [
        (first, second)
        for first, second in pairs
        if not max(abs(x - y) for x, y in zip(seen[first], seen[second], strict=True)) > 0.03
    ]
    assert not alike


def test_an_engine_has_one_colour_and_an_unknown_name_has_one_that_stays():
    for engine in ("fma", "mma", "wgmma", "triton"):
        kernels = [f"decode_{engine}", f"mla_{engine}", f"{engine}_prefill", engine]
        assert {style.colour(kernel) for kernel in kernels} == {style.ENGINES[engine]}
    assert style.colour("decode_mma_n8") not in style.ENGINES.values()
    assert style.colour("prefill_wgmma_basic") != style.colour("prefill_wgmma")
    assert style.colour("toy") == style.colour("toy") != style.colour("another toy")
    to_rgb(style.colour(""))
    assert style.name("triton_decode", "on") == "Triton, on"
    assert style.name("decode_mma", "on") == "decode_mma"


def test_no_kernel_is_named_in_plots():
    names = [name for name in discover() if "_" in name]  # the others are words of English too
    named = re.compile(rf"\b({'|'.join(names)})\b")
    sources = (ROOT / "labkernels" / "plots").rglob("*.py")
    found = [path.name for path in sources if named.search(path.read_text(encoding="utf-8"))]
    assert not found


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


@pytest.mark.parametrize("pair", [("ground", "roof"), ("left", "right")])
def test_an_import_that_points_up_is_refused(pair):
    with pytest.raises(ValueError, match=f"{pair[0]} imports {pair[1]}; allowed: imports of"):
        plots.rooms_by_layer(rooms(), imports(pair), origin=ORIGIN)


def test_a_long_origin_does_not_widen_the_figure():
    figure, _ = style.new_figure(height_inches=2)
    commits = ", ".join(["0123456789"] * 12)
    style.say_origin(figure, f"measured on NVIDIA H200, 2026-11-28, commits {commits}")
    figure.canvas.draw()
    assert figure.get_tightbbox().width <= figure.get_figwidth() + 0.2
