"""Mistakes that are another mistake in other words, as the weights show that they give each key."""

import re
from dataclasses import replace

import numpy as np

from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

ANOTHER_MASK = "another mask: keys that the mask hides"
_READ = re.compile(
    r"(keys|K and V) read (in another order|from (other keys|elsewhere)|at an offset)"
)
_NUMBERS = 2**22  # keys times keys: more would take seconds
_NEARLY = 1e-6  # relative difference of two weights that rounding of float64 may cause
_LEAST = 1e-200  # weight of a key that is too small to tell


def is_mask(mistake: Mistake, found: list[Sheet]) -> bool:
    """Return whether each row has the right weights of some keys, hidden ones among them.

    A causal row that reads its keys in reverse is a row whose mask is reversed.
    """
    if not _READ.match(mistake.name) or "requests" in mistake.name:
        return False
    if not any(sheet.hidden.any() for sheet in found):
        return False
    return all(_sees_others(sheet, mistake) for sheet in found)


def _sees_others(sheet: Sheet, mistake: Mistake) -> bool:
    n = sheet.kv_len
    if n * n > _NUMBERS:
        return False
    own = ("v", sheet.kv_head, sheet.request)  # values that show the weight of each key
    probe = replace(sheet, channels=slice(None), notes={}, shared={own: np.eye(n)})
    given = mistake.outputs(probe)
    if given is None or given.shape != sheet.raw.shape:
        return given is None
    right = np.exp2(sheet.raw - sheet.raw.max(1, keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(right > _LEAST, given / right, 0.0)
    top = times.max(1, keepdims=True)
    either = np.minimum(np.abs(times), np.abs(times - top))  # a key has no weight, or its own
    return bool((either <= _NEARLY * top).all())
