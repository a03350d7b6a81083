"""A target: how a named kernel is called in each layout that it offers."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from labkernels.probing.layouts import LAYOUTS
from labkernels.variant import AttentionVariant


@dataclass(frozen=True)
class Target:
    """A kernel by name; make[layout](variant) returns the function that the probe calls.

    make raises ValueError for a variant that the kernel does not compute. knobs: by layout, values
    that its function takes by keyword, each to be compared. missing(device): why it cannot run
    there, or None. version(): the library's name and version.
    """

    name: str
    make: Mapping[str, Callable[[AttentionVariant], Callable[..., Any]]]
    version: Callable[[], str]
    missing: Callable[[str], str | None] = lambda device: None
    knobs: Mapping[str, Mapping[str, tuple]] = field(default_factory=dict)
    gradients: bool = False

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts that it offers, the usual one first."""
        return tuple(self.make)

    def function(self, layout: str, variant: AttentionVariant) -> Callable[..., Any]:
        """Return the function for a layout and a variant.

        Raises: ValueError naming the layouts that exist, or what the kernel does not compute.
        """
        if layout not in self.make:
            raise ValueError(
                f"layout = {layout!r} of {self.name}, allowed: {', '.join(self.layouts)}"
            )
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


def installed(label: str, package: str) -> Callable[[], str]:
    """Return a function that says which version of a package is installed."""
    return lambda: f"{label} {metadata.version(package)}"


def target_of_function(name: str) -> Target:
    """Return the function `module:function` or `path/file.py:function` as a target of any layout.

    The function computes the variant by itself, so that every variant may be declared.
    Raises: ValueError with the reason why it cannot be imported.
    """
    place, _, attribute = name.rpartition(":")
    try:
        module = _module(place)
        function = module
        for part in attribute.split("."):
            function = getattr(function, part)
    except Exception as error:  # a user's module may fail in any way when it is imported
        raise ValueError(f"{name!r} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(function):
        raise ValueError(f"{name!r} is a {type(function).__name__}, allowed: a function")
    version = f"{place} {getattr(module, '__version__', '')}".strip()
    return Target(name, dict.fromkeys(LAYOUTS, lambda variant: function), lambda: version)


def _module(place: str):
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
