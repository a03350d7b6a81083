"""Callables that the probe knows by name: our kernels, torch, FlashInfer, FlashAttention, a file's.

A module of this folder with TARGETS lists those of one library; a name is `library:backend`, or the
name of one of our kernels.
"""

import importlib
import pkgutil
from functools import cache

from labkernels.probing.targets.target import Target, target_of_function

__all__ = ["Target", "find", "targets"]


@cache
def targets() -> dict[str, Target]:
    """Return every target by its name, ours first.

    >>> targets()["torch:math"].layouts
    ('bhsd',)
    """
    listed = ("ours", *sorted(found.name for found in pkgutil.iter_modules(__path__)))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in dict.fromkeys(listed)]
    return {item.name: item for module in modules for item in getattr(module, "TARGETS", ())}


def find(name: str) -> Target:
    """Return a target by its name, or the function that `module:function` names.

    Raises: ValueError with the names that exist, or with the reason why an import failed.
    """
    if name in targets():
        return targets()[name]
    if ":" not in name:
        raise ValueError(
            f"{name!r} is no kernel that the probe knows; allowed: {', '.join(targets())}, "
            "or module:function, or file.py:function"
        )
    return target_of_function(name)
