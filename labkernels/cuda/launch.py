"""Compiles a CUDA kernel and launches it, on the GPU or as its CPU build."""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from labkernels.cuda.compiler.specialization import Specialization
from labkernels.cuda.gpu.tensor_map import TensorMap
from labkernels.cuda.workspace import NO_SPACE, Space
from labkernels.hardware import Gpu
from labkernels.kept import Kept

Describe = Callable[[torch.Tensor], TensorMap]
Run = Callable[[], None]
Params = TypeVar("Params", bound=ctypes.Structure)
_MAPPED = 256  # combinations of addresses for which tensor maps are kept


@dataclass(frozen=True, eq=False)
class Launch:
    """What launches of the same facts share: everything except the tensors.

    On a CPU, `gpu` is the GPU whose tensor-core arithmetic the CPU build follows. params: the
    parameter with its numbers set; addresses of tensors are written to a copy, to the pointers of
    the same names. own: tensors that the launches share. maps: for each tensor map in params, its
    tensor and how the map describes it. written: the tensors that the kernel writes. early: blocks
    may start while the launch before ends, and wait themselves (`wait_previous_launch`).
    """

    specialization: Specialization
    gpu: Gpu
    device: torch.device
    grid: tuple[int, int, int]
    params: ctypes.Structure
    written: frozenset[str]
    checks: bool
    own: Mapping[str, torch.Tensor] = field(default_factory=dict)
    maps: Mapping[str, tuple[str, Describe]] = field(default_factory=dict)
    early: bool = False
    _mapped: Kept = field(default_factory=lambda: Kept(_MAPPED))

    def on(self, tensors: Mapping[str, torch.Tensor], space: Space = NO_SPACE) -> Run:
        """Return a function that launches the kernel on these tensors, and keeps them.

        On torch's meta device, whose tensors have no memory, nothing is compiled or computed.
        """
        template, at = self._template
        words = type(template).from_buffer_copy(self._with_maps(tensors))
        # launches of one call may each use only a part of its tensors and of its memory
        for name, tensor in tensors.items():
            if name in at:
                words[at[name]] = tensor.data_ptr()
        for name, address in space.addresses.items():
            if name in at:
                words[at[name]] = address
        if (listed := _COLLECTING.get()) is not None:
            listed.append(Collected(self, words, tensors, space))
            return _nothing
        return self._launcher(words, tensors, space)

    @functools.cached_property
    def _launcher(self) -> Callable[..., Run]:
        """The launcher of the kernel, compiled and loaded."""
        if self.device.type == "meta":
            return lambda *_: _nothing
        return (_gpu_launcher if self.device.type == "cuda" else _cpu_launcher)(self)

    @functools.cached_property
    def _template(self) -> tuple[ctypes.Array, Mapping[str, int]]:
        """The parameter as 64-bit words, and the place of each tensor's pointer among them."""
        at = _pointers(type(self.params))
        words_type = ctypes.c_uint64 * (ctypes.sizeof(self.params) // _WORD_BYTES)
        words = words_type.from_buffer_copy(self.params)
        for name, tensor in self.own.items():
            words[at[name]] = tensor.data_ptr()
        return words, at

    def _with_maps(self, tensors: Mapping[str, torch.Tensor]) -> ctypes.Array:
        """Return the words with tensor maps: for the same facts, they depend only on addresses."""
        template = self._template[0]
        if not self.maps:
            return template
        places = tuple([tensors[name].data_ptr() for name, _ in self.maps.values()])
        words = self._mapped.get(places)
        if words is None:
            made = type(self.params).from_buffer_copy(template)
            for field_name, (name, describe) in self.maps.items():
                setattr(made, field_name, describe(tensors[name]))
            words = self._mapped[places] = type(template).from_buffer_copy(made)
        return words


@dataclass(frozen=True, eq=False)
class Collected:
    """A launch that was listed and not compiled: the words of its parameter, and its memory."""

    launch: Launch
    words: ctypes.Array
    tensors: Mapping[str, torch.Tensor]
    space: Space


_COLLECTING: ContextVar[list[Collected] | None] = ContextVar("_COLLECTING", default=None)


@contextlib.contextmanager
def collected() -> Iterator[list[Collected]]:
    """List the launches made in this context, without compiling or running them."""
    listed: list[Collected] = []
    before = _COLLECTING.set(listed)
    try:
        yield listed
    finally:
        _COLLECTING.reset(before)


_WORD_BYTES = 8


def with_numbers(struct: type[Params], *numbers: Any) -> Params:
    """Return a parameter with these fields in their order; its pointers are null."""
    names = [name for name, kind, *_ in struct._fields_ if kind is not ctypes.c_void_p]
    return struct(**dict(zip(names, numbers, strict=True)))


@functools.cache
def _pointers(struct: type[ctypes.Structure]) -> dict[str, int]:
    """Return the 64-bit word of each pointer of a parameter, by name, also in nested structures."""
    found = {}
    fields = [field for kind in struct.__mro__ for field in vars(kind).get("_fields_", ())]
    for name, kind, *_ in fields:
        first = getattr(struct, name).offset // _WORD_BYTES
        if kind is ctypes.c_void_p:
            found[name] = first
        elif issubclass(kind, ctypes.Structure):
            found |= {inner: first + word for inner, word in _pointers(kind).items()}
    return found


def _nothing() -> None:
    """Do nothing, as the launch for tensors without memory."""


def _gpu_launcher(made: Launch) -> Callable[..., Run]:
    from labkernels.cuda.gpu.kernel import arguments

    one, index = made.specialization, made.device.index
    kernel = gpu_kernel(one, made.gpu.compile_arch, index)
    how = {"grid": made.grid, "threads": one.threads, "smem_bytes": one.smem_bytes}
    launch = kernel.plan(**how, params=made.params, early=made.early).run
    # as in torch's generated code, since making a Stream object takes 3 us
    current_stream = torch._C._cuda_getCurrentRawStream

    def prepare(words: ctypes.Array, *memory: Any) -> Run:
        given = arguments(words)

        def run(owner: Any = (words, memory)) -> None:
            launch(current_stream(index), given)

        return run

    return prepare


def _cpu_launcher(made: Launch) -> Callable[..., Run]:
    from labkernels.cuda.host.build import GlobalRange

    one, written = made.specialization, made.written
    kernel = cpu_kernel(one, made.gpu.arch, made.checks)
    how = {"grid": made.grid, "threads": one.threads, "smem_bytes": one.smem_bytes}

    def prepare(words: ctypes.Array, tensors: Mapping[str, torch.Tensor], space: Space) -> Run:
        listed = (*tensors.items(), *made.own.items())
        places = [(name, x.data_ptr(), span_bytes(x)) for name, x in listed]
        places += [(name, at, space.sizes_bytes[name]) for name, at in space.addresses.items()]
        ranges = [GlobalRange(*place, place[0] in written) for place in places]

        alone, rests = threading.Lock(), True

        def run(owner: Any = tensors) -> None:
            nonlocal rests
            with alone:  # two launches at once would use the same workspace
                if not rests:  # the last launch failed before it was complete
                    space.clear()
                rests = False
                kernel.launch(**how, params=words, ranges=ranges)
                rests = True

        return run

    return prepare


def registers(made: Specialization, gpu: Gpu, device: torch.device) -> int:
    """Return the registers per thread, by the driver of a GPU."""
    return gpu_kernel(made, gpu.compile_arch, device.index).registers


@functools.cache
def gpu_kernel(made: Specialization, arch: str, device: int):
    """Return the specialization loaded on a device."""
    from labkernels.cuda.compiler import nvrtc
    from labkernels.cuda.gpu.kernel import load

    compiled = nvrtc.compiled(made, arch)
    return load(compiled, device=device)


@functools.cache
def cpu_kernel(made: Specialization, arch: str, checks: bool):
    """Return the CPU build of the specialization."""
    from labkernels.cuda.host import build

    return build.build(
        made.header,
        instance=made.instance,
        params=made.params,
        defines=made.defines,
        arch=arch,
        checks=checks,
        include_dirs=made.include_dirs,
    )


def span_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to its last, gaps included."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
