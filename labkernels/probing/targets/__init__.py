"""Callables that the probe knows by name: our kernels, torch, FlashInfer, FlashAttention, a file's.

A module of this folder with TARGETS lists those of one library; a name is `library:backend`, or the
name of one of our kernels.
"""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from labkernels.probing.layouts import LAYOUTS
from labkernels.units import require_choice
from labkernels.variant import AttentionVariant


@dataclass(frozen=True)
class Target:
    """A kernel by name; make[layout](variant) returns the function that the probe calls.

    make raises ValueError for a variant that the kernel does not compute. missing(device): why it
    cannot run there, or None. version(): the library's name and version.
    """

    name: str
    make: Mapping[str, Callable[[AttentionVariant], Callable[..., Any]]]
    version: Callable[[], str]
    missing: Callable[[str], str | None] = lambda device: None

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts that it offers, the usual one first."""
        return tuple(self.make)

    def function(self, layout: str, variant: AttentionVariant) -> Callable[..., Any]:
        """Return the function for a layout and a variant.

        Raises: ValueError naming the layouts that exist, or what the kernel does not compute.
        """
        require_choice(f"layout of {self.name}", layout, self.layouts)
        return self.make[layout](variant)


def maker(call: Callable, *fields: str, **fixed) -> Callable[[AttentionVariant], Callable]:
    """Return what makes the function of a variant: `call` takes the variant, and what is fixed.

    What is returned raises ValueError for a variant that asks for more than these fields.
    """

    def make(variant: AttentionVariant) -> Callable:
        plain = AttentionVariant()
        for name in variant.__dataclass_fields__:
            value = getattr(variant, name)
            if name not in fields and value != getattr(plain, name):
                raise ValueError(f"{name} = {value!r}, allowed: none by this kernel")
        return partial(call, variant, **fixed)

    return make


def on_gpu(library: str, missing: Callable[[], str | None]) -> Callable[[str], str | None]:
    """Return a function that says why a library for GPUs cannot run on a device, or None."""
    return lambda device: missing() if device != "cpu" else f"{library} has no kernels for a CPU"


def installed(label: str, package: str) -> Callable[[], str]:
    """Return a function that says which version of a package is installed."""
    return lambda: f"{label} {metadata.version(package)}"


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
    """Return a target by its name, or `module:function` or `path/file.py:function` as one.

    A function computes its variant by itself, in any layout, so that every variant may be declared.
    Raises: ValueError with the names that exist, or with the reason why an import failed.
    """
    if name in targets():
        return targets()[name]
    place, _, attribute = name.rpartition(":")
    if not place:
        raise ValueError(
            f"{name!r} is no kernel that the probe knows; allowed: {', '.join(targets())}, "
            "or module:function, or file.py:function"
        )
    try:
        module = _module(place)
        function = attrgetter(attribute)(module)
    except Exception as error:  # a user's module may fail in any way when it is imported
        raise ValueError(f"{name!r} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(function):
        raise ValueError(f"{name!r} is a {type(function).__name__}, allowed: a function")
    version = f"{place} {getattr(module, '__version__', '')}".strip()
    return Target(name, dict.fromkeys(LAYOUTS, lambda variant: function), lambda: version)


def _module(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix != ".py":
        if "" not in sys.path:
            sys.path.insert(0, "")  # as `python -m` does, so that a module of this folder is found
        return importlib.import_module(place)
    if not path.is_file():
        raise FileNotFoundError(f"no file {place}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickles look a function's module up
    spec.loader.exec_module(module)
    return module
