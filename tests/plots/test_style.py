import itertools

import pytest
from matplotlib.colors import to_rgb

from labkernels.kernels.spec import discover
from labkernels.measure import mla_peers
from labkernels.measure.peers import PEERS
from labkernels.plots import style


def test_every_kernel_and_peer_has_a_colour():
    references = {name for name, spec in discover().items() if spec.language == "torch"}
    assert {*discover(), *PEERS, *mla_peers.PEERS} - references == set(style.COLOURS)


def meet():
    """Pairs that a figure may show together: a kernel of decode and one of prefill never meet."""
    family = {name: spec.family for name, spec in discover().items()}
    for first, second in itertools.combinations(style.COLOURS, 2):
        if family.get(first, "decode") == family.get(second, "decode"):
            yield first, second


def luminance_and_blue(colour):
    """Two quantities that red-green colour-blind eyes still see."""
    red, green, blue = to_rgb(colour)
    return 0.3 * red + 0.59 * green, blue


@pytest.mark.parametrize(("first", "second"), list(meet()))
def test_colours_differ_without_telling_red_from_green(first, second):
    a, b = (luminance_and_blue(style.colour(kernel)) for kernel in (first, second))
    assert max(abs(x - y) for x, y in zip(a, b, strict=True)) > 0.03


def test_unknown_kernel_is_named():
    with pytest.raises(ValueError, match="kernel = 'nope', allowed: decode_fma"):
        style.colour("nope")


def test_one_source_is_called_by_its_switch():
    assert style.name("triton_decode", "on") == "Triton, on"
    assert style.name("flashinfer_fa2", "on") == "FlashInfer, fa2"
    assert style.name("decode_mma", "on") == "decode_mma"
