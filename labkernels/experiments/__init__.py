"""The experiments on performance, accuracy and training, by `discover`.

An experiment is a module of one of these folders that defines EXPERIMENT, or EXPERIMENTS for
several similar ones. The other modules are parts of an experiment.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkernels.experiments.experiment import Experiment


def discover() -> "dict[str, Experiment]":
    """Return every experiment by its name."""
    found = sorted(_experiments(), key=lambda experiment: experiment.name)
    return {experiment.name: experiment for experiment in found}


def find(name: str) -> "Experiment":
    """Return the experiment of this name.

    Raises: ValueError listing the names.
    """
    found = discover()
    if name not in found:
        raise ValueError(f"experiment is {name!r}; allowed: {', '.join(found)}")
    return found[name]


def _experiments() -> "Iterator[Experiment]":
    for item in pkgutil.walk_packages(__path__, f"{__name__}."):
        module = importlib.import_module(item.name)
        if hasattr(module, "EXPERIMENT"):
            yield module.EXPERIMENT
        yield from getattr(module, "EXPERIMENTS", ())
