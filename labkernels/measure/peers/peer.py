"""A peer: another implementation of an operation, with its own plan.

A peer's plan, allocation and gathering of pages happen before its step, outside every timed part;
its step only launches kernels, so that a CUDA graph can hold it where the library allows.
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
from typing import Any, NamedTuple

from labkernels.kernels.call import Step
from labkernels.policy import NumericPolicy

# A peer may round where it likes. The widest bound holds for all peers that were measured, also for
# FlashInfer's CUDA cores, which keep P in fp32 but leave the fp32 bound in bf16 where they split
# the keys.
PEER_POLICY = NumericPolicy(denominator="rounded")
# The source location of an error: it describes this machine more than the error.
_PLACE = re.compile(r"^.*? at /\S+?:\d+: ")
_PATH = re.compile(r"(?<![\w.])(?:/[\w.+-]+)+/(?=[\w.+-])")


class Refused(Exception):
    """A peer that says it does not support a workload; the text is its reason."""


class Pools(NamedTuple):
    """What an append writes. Shapes: k, v [pages, page_size, kv_heads, head_dim]."""

    k: Any
    v: Any


@dataclass(frozen=True)
class Peer:
    """Another implementation of some operations; its name and library are columns in the data.

    policy: what its outputs are judged by. steps: by operation, what prepares a step on inputs; it
    raises Refused for a workload that the library does not take. missing(): why the library cannot
    run here, or None.
    """

    name: str
    library: str
    idea: str
    policy: NumericPolicy
    steps: Mapping[str, Callable[[Any], Step]]
    missing: Callable[[], str | None]


@dataclass(frozen=True, eq=False)
class Tensors:
    """Requests of one length. Shapes: q [B, M, Hq, D]; k, v [B, L, Hkv, D]; causal needs M = L."""

    q: Any
    k: Any
    v: Any
    scale: float
    causal: bool

    @property
    def is_decode(self) -> bool:
        """Whether each request has one query token."""
        return self.q.shape[1] == 1


@dataclass(frozen=True)
class Backend:
    """A backend of a library on plain tensors, which is judged and not timed.

    run(tensors) returns [B, M, Hq, D], or raises if the library refuses.
    """

    name: str
    library: str
    tensor_cores: str
    run: Callable[[Tensors], Any]


@cache
def backends() -> dict[str, Backend]:
    """Every backend by name: those in BACKENDS of each file of this folder."""
    return {item.name: item for module in _modules() for item in getattr(module, "BACKENDS", ())}


@cache
def peers() -> dict[str, Peer]:
    """Every peer by name: those in PEERS of each file of this folder."""
    return {peer.name: peer for module in _modules() for peer in getattr(module, "PEERS", ())}


def peers_of(operation: str) -> dict[str, Peer]:
    """The peers of an operation, by name."""
    return {name: peer for name, peer in peers().items() if operation in peer.steps}


def build(operation: str, shapes: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Compile the libraries' own kernels, before anything is timed.

    shapes: dtypes and head_dims. Returns the reason of each library that cannot run here.
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
    """Return the last line of an error that says something, without paths, in 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # FlashInfer closes with its own message; a C++ stack may stand above it.
    telling = [line for line in lines if "nsupported" in line or "rror" in line]
    line = (telling or lines or [type(error).__name__])[-1]
    return _PATH.sub("", _PLACE.sub("", line))[-200:]


def not_installed(module: str, package: str) -> str | None:
    """Return why a package cannot be used, or None."""
    found = importlib.util.find_spec(module)
    return None if found is not None else f"{package} is not installed"
