"""Converts between NumPy and torch, and picks the module whose functions take an array.

The float64 sums of oracle, bounds, sigma and matched filters use only functions that both modules
spell the same way, so that the same source runs on a GPU's tensors, where NumPy would take minutes.
"""

import sys
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

# A NumPy array, or a torch tensor of which only those operations are used that NumPy has too.
Array: TypeAlias = np.ndarray
ZERO: Any = 0.0  # the start of a sum of arrays


def as_float64(tensor: Any) -> np.ndarray:
    """Return a tensor of any device and float format as a float64 array."""
    return to_numpy(tensor.double())


def namespace(array: Array) -> ModuleType:
    """Return the module with functions for this array: numpy or torch."""
    if type(array) is np.ndarray:  # is asked a hundred thousand times
        return np
    return sys.modules[type(array).__module__.partition(".")[0]]


def to_numpy(array: Array) -> np.ndarray:
    """Return the array in NumPy, from any device; floats of 8 or 16 bits become float32.

    A negation or conjugation that torch has put off is carried out, which NumPy cannot do.
    """
    if isinstance(array, np.ndarray):
        return array
    wide = array.float() if array.dtype.is_floating_point and array.element_size() < 4 else array
    return wide.detach().cpu().resolve_conj().resolve_neg().numpy()


def moved(array: np.ndarray, like: Array) -> Array:
    """Return a NumPy array in the namespace and on the device of another array."""
    return namespace(like).asarray(np.array(array), device=like.device)


def converted(array: Array, like: Array, *, narrow: bool = False) -> Array:
    """Return the values as float64, or fp32 if narrow, in the namespace of an array beside them."""
    xp = namespace(array)
    found = xp.asarray(array, dtype=xp.float32 if narrow else xp.float64)
    return found if namespace(like) is xp else to_numpy(found)


def float64(array: Array) -> Array:
    """Return the values as float64, on their device."""
    xp = namespace(array)
    return xp.asarray(array, dtype=xp.float64)
