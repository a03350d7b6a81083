"""Finds the kernels by their folders; there is no other list."""

import importlib
import pkgutil
from functools import cache

from labkernels.kernels.kernel import Kernel


@cache
def discover() -> dict[str, Kernel]:
    """Return the KERNEL of every kernel folder by name, parents before children.

    Raises: ValueError for a folder whose kernel has the name of another one.

    >>> kernels = discover()
    >>> kernels["decode_mma"].parent, kernels["decode_mma"].language
    ('decode_fma', 'cuda')
    """
    package = importlib.import_module("labkernels.kernels")
    kernels = {}
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if found.name.endswith(".spec"):
            kernel = importlib.import_module(found.name).KERNEL
            if kernel.name in kernels:
                folders = f"{kernels[kernel.name].folder} and {kernel.folder}"
                raise ValueError(
                    f"name = {kernel.name!r} of two kernels, {folders}, allowed: a name of its own"
                )
            kernels[kernel.name] = kernel
    return dict(sorted(kernels.items(), key=lambda item: (_depth(kernels, item[0]), item[0])))


def _depth(kernels: dict[str, Kernel], name: str) -> int:
    parent = kernels[name].parent
    return 0 if parent is None else 1 + _depth(kernels, parent)


def kernels_of(operation: str, language: str | None = None) -> dict[str, Kernel]:
    """Return the kernels of an operation by name, in all languages or in one."""
    return {
        name: kernel
        for name, kernel in discover().items()
        if kernel.operation == operation and language in (None, kernel.language)
    }
