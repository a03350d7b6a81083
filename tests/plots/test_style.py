import itertools
import re

import pytest
from matplotlib.colors import to_rgb

from labkernels.kernels.registry import discover
from labkernels.plots import style
from labkernels.records import store
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


@pytest.mark.parametrize("engine", ["fma", "mma", "wgmma", "triton"])
def test_an_engine_has_one_colour_in_every_operation(engine):
    kernels = [f"decode_{engine}", f"mla_{engine}", f"{engine}_prefill", engine]
    assert {style.colour(kernel) for kernel in kernels} == {style.ENGINES[engine]}


def test_a_variation_of_an_engine_has_a_colour_of_its_own():
    assert style.colour("decode_mma_n8") not in style.ENGINES.values()
    assert style.colour("prefill_wgmma_basic") != style.colour("prefill_wgmma")


def test_an_unknown_name_has_a_colour_that_stays():
    assert style.colour("toy") == style.colour("toy") == "#6b7a1f"
    assert style.colour("toy") != style.colour("another toy")
    to_rgb(style.colour(""))


def test_no_kernel_is_named_in_plots():
    names = [name for name in discover() if "_" in name]  # the others are words of English too
    named = re.compile(rf"\b({'|'.join(names)})\b")
    sources = (ROOT / "labkernels" / "plots").rglob("*.py")
    found = [path.name for path in sources if named.search(path.read_text(encoding="utf-8"))]
    assert not found


def test_one_source_is_called_by_its_switch():
    assert style.name("triton_decode", "on") == "Triton, on"
    assert style.name("flashinfer_fa2", "on") == "FlashInfer's fa2"
    assert style.name("decode_mma", "on") == "decode_mma"
