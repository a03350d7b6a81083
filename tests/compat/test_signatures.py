"""Names, order and defaults of arguments are those of flash-attn 2.8.3 and FlashInfer 0.7.2.

signatures.json was read off their sources, of FlashAttention-3 at commit 01afd16d. FlashInfer's
decode takes the options of `plan` by position only as it did before 0.7; here they stand in that
order, and two newer ones follow.
"""

import inspect
import json
from pathlib import Path

import pytest

from labkernels.compat import arguments, flash_attn, flash_attn_interface, flashinfer

OURS = {"flash_attn": flash_attn, "flash_attn_interface": flash_attn_interface}
OURS |= {"flashinfer": flashinfer}
SIGNATURES = json.loads((Path(__file__).parent / "signatures.json").read_text(encoding="utf-8"))
CASES = [(library, name) for library, known in SIGNATURES.items() for name in known]


def signature(function):
    """Return the parameters as one line: names, `*` before those by name alone, and defaults."""
    told, by_name = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not by_name:
            told, by_name = [*told, "*"], True
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        told.append(parameter.name + default)
    return ", ".join(told)


@pytest.mark.parametrize(("library", "name"), CASES)
def test_a_signature_is_the_originals(library, name):
    found = OURS[library]
    for part in name.split("."):
        found = getattr(found, part)
    assert signature(found) == SIGNATURES[library][name]


def test_a_fixed_argument_is_refused_by_name_and_by_place():
    @arguments.keeps_fixed
    def attend(q, dropout_p: arguments.Fixed = 0.0, mask: arguments.Fixed = None):
        return q

    assert attend(1, 0, None) == attend(1, dropout_p=0.0) == 1
    for call in (lambda: attend(1, 0.1), lambda: attend(1, dropout_p=0.1)):
        with pytest.raises(ValueError, match=r"^dropout_p = 0.1, allowed: 0.0$"):
            call()
    with pytest.raises(ValueError, match=r"^mask = \[1\], allowed: None$"):
        attend(1, mask=[1])
