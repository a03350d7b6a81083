"""A peer: another implementation of an operation, with its own plan.

A peer's plan, allocation and gathering of pages happen before its step, outside every timed part.
Its step only launches kernels, so a CUDA graph can hold the step if the library allows that.
"""

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from labkernels.kernels.call import Step
from labkernels.policy import NumericPolicy

# The places where a peer rounds are not known. All peers that were measured keep this widest bound,
# including FlashInfer's CUDA-core decode: it keeps P in fp32, but exceeds the bound for P in fp32
# on bf16 inputs where it splits the keys.
PEER_POLICY = NumericPolicy(denominator="rounded")
# The source location and paths of an error: they describe this machine and not the error.
_PLACE = re.compile(r"^.*? at /\S+?:\d+: ")
_PATH = re.compile(r"(?<![\w.])(?:/[\w.+-]+)+/(?=[\w.+-])")


class Refused(Exception):
    """Raised where a peer does not support a workload; the text is the reason."""


@dataclass(frozen=True)
class Peer:
    """Another implementation of some operations; its name and library are columns in the data.

    policy: the policy that its outputs are judged by. steps: for each operation a function that
    prepares a step on inputs, or raises Refused for a workload that the library does not support.
    missing(): why the library cannot run here, or None. features: those of an AttentionVariant that
    its steps pass on to the library.
    """

    name: str
    library: str
    idea: str
    policy: NumericPolicy
    steps: Mapping[str, Callable[[Any], Step]]
    missing: Callable[[], str | None]
    features: tuple[str, ...] = ()


@cache
def peers() -> dict[str, Peer]:
    """Every peer by name, from PEERS of each file of this folder."""
    return {peer.name: peer for module in _modules() for peer in getattr(module, "PEERS", ())}


def peers_of(operation: str) -> dict[str, Peer]:
    """The peers of an operation, by name."""
    return {name: peer for name, peer in peers().items() if operation in peer.steps}


def build(operation: str, shapes: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Compile the libraries' own kernels, before anything is timed.

    shapes: pairs of dtype and head_dim. Returns why a library cannot run here, by library.
    """
    shapes, reasons = sorted(set(shapes)), {}
    for module in _modules():
        for library, compile_shapes in getattr(module, "BUILDS", {}).items():
            reason = compile_shapes(operation, shapes)
            if reason:
                reasons[library] = reason
    return reasons


def _modules() -> Iterator[ModuleType]:
    package = importlib.import_module(__package__)
    for found in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f"{__package__}.{found.name}")


@contextmanager
def refusals(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into Refused, in the library's own words."""
    try:
        yield
    except kinds as error:
        raise Refused(one_line(error)) from error


def one_line(error: BaseException) -> str:
    """Return the last line of an error that names it, without paths, cut to 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # FlashInfer's own message is the last such line; a C++ stack may stand above it.
    telling = [line for line in lines if "nsupported" in line or "rror" in line]
    line = (telling or lines or [type(error).__name__])[-1]
    return _PATH.sub("", _PLACE.sub("", line))[-200:]


def not_installed(module: str, package: str) -> str | None:
    """Return why a package cannot be used, or None."""
    found = importlib.util.find_spec(module)
    return None if found is not None else f"{package} is not installed"
