"""All families, implementations and bugs, and which of them are held out.

The others were looked at while the verdict was written.
"""

import zlib
from dataclasses import replace

from labkernels.measure.strangers import bugs, inputs, looked_at, right
from labkernels.measure.strangers.held_out import bugs as new_bugs
from labkernels.measure.strangers.held_out import inputs as new_inputs
from labkernels.measure.strangers.held_out import right as new_right

DEVELOPMENT, HELD_OUT = "development", "held out"
FIRST_HELD_OUT_SEED = 90_000  # smaller seeds were judged while the verdict was written

FAMILIES = inputs.FAMILIES | looked_at.FAMILIES | new_inputs.FAMILIES
RIGHT = right.RIGHT | looked_at.RIGHT | new_right.RIGHT
WRONG = bugs.WRONG | looked_at.WRONG | new_bugs.WRONG
ASKED = looked_at.ASKED | new_bugs.ASKED
_NEW = {*new_inputs.FAMILIES, *new_right.RIGHT, *new_bugs.WRONG}


def of(*kinds: str) -> str:
    """Return the set of a run: held out if one of its family, implementation or bug is."""
    return HELD_OUT if _NEW.intersection(kinds) else DEVELOPMENT


def asking(call: inputs.Call, bug: str) -> inputs.Call:
    """Return the call with the options that a bug needs; a window makes the call causal."""
    asked = ASKED.get(bug, inputs.Asked())
    return replace(call, asked=asked, causal=call.causal or asked.window_left is not None)


def call(family: str, shape: inputs.Shape, dtype: str, seed: int) -> inputs.Call:
    """Return the call of a family of either set; a seed gives the same bits on every machine."""
    if family in inputs.FAMILIES:
        return inputs.call(family, shape, dtype, seed)
    key = [seed, zlib.crc32(family.encode())]
    return inputs.drawn_call(FAMILIES[family], key, shape, dtype)
