"""The few functions of the CUDA driver that the lab calls, by ctypes.

cuda.core cannot launch with a structure by value, and the launch of cuda.bindings differs between
its versions; libcuda's C interface is the same for every driver from CUDA 12.4 on.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

# Results
INVALID_CONTEXT = 201
INVALID_HANDLE = 400
# Function attributes
MAX_THREADS_PER_BLOCK = 0
STATIC_SMEM_BYTES = 1
LOCAL_BYTES = 3
REGISTERS = 4
MAX_DYNAMIC_SMEM_BYTES = 8
SMEM_CARVEOUT_PERCENT = 9
# Device attributes
SMEM_PER_BLOCK_OPTIN_BYTES = 97
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
# Launch attributes
PROGRAMMATIC_STREAM_SERIALIZATION = 6


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, of whose 64-byte union the first integer is used."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("smem_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("n_attributes", ctypes.c_uint),
    )


class DriverError(RuntimeError):
    """The CUDA driver refused a call; `code` is its CUresult."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@functools.cache
def library() -> ctypes.CDLL:
    """Return libcuda, initialised.

    Raises: DriverError if there is no driver, or no GPU that it can drive.
    """
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(-1, f"the NVIDIA driver is not installed ({error})") from error
    integer, size, pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    lib.cuDevicePrimaryCtxRetain.argtypes = (pointer, integer)
    lib.cuCtxPushCurrent_v2.argtypes = (pointer,)
    lib.cuModuleGetFunction.argtypes = (pointer, pointer, ctypes.c_char_p)
    lib.cuFuncGetAttribute.argtypes = (pointer, integer, pointer)
    lib.cuFuncSetAttribute.argtypes = (pointer, integer, integer)
    lib.cuFuncGetParamInfo.argtypes = (pointer, size, pointer, pointer)
    lib.cuLaunchKernelEx.argtypes = (pointer, pointer, pointer, pointer)
    code = lib.cuInit(0)
    if code != 0:
        raise DriverError(code, f"the NVIDIA driver does not start: {_describe(lib, code)}")
    return lib


def call(name: str, *arguments: object) -> None:
    """Call a driver function.

    Raises: DriverError with the function's name and the driver's words if it fails.
    """
    lib = library()
    check(getattr(lib, name)(*arguments), name)


def check(code: int, what: str) -> None:
    """Raise DriverError for a result that is not success."""
    if code != 0:
        raise DriverError(code, f"{what} failed: {_describe(library(), code)}")


def _describe(lib: ctypes.CDLL, code: int) -> str:
    name, words = ctypes.c_char_p(), ctypes.c_char_p()
    lib.cuGetErrorName(code, ctypes.byref(name))
    lib.cuGetErrorString(code, ctypes.byref(words))
    if name.value is None or words.value is None:
        return f"CUresult {code}"
    return f"{name.value.decode()} ({code}), {words.value.decode()}"


def device_attribute(attribute: int, device: int) -> int:
    """Return one integer that the driver reports about a device."""
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
    return value.value


@functools.cache
def primary_context(device: int) -> int:
    """Return the context that the CUDA runtime, and so torch, uses on a device; never released."""
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context.value


@contextmanager
def current(device: int) -> Iterator[None]:
    """Make a device's primary context this thread's current one, and put the old one back."""
    call("cuCtxPushCurrent_v2", primary_context(device))
    try:
        yield
    finally:
        popped = ctypes.c_void_p()
        call("cuCtxPopCurrent_v2", ctypes.byref(popped))
