"""Tensor maps: descriptions of tensors from which the TMA, or the CPU machine, finds a box.

They are lab::TensorMap of tma.cuh. A structure with a map keeps the map at a multiple of 64 bytes,
and is itself a multiple of 64 bytes long (`padded`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from labkernels.cuda.compiler.specialization import ATOM_COLUMNS
from labkernels.cuda.gpu import driver
from labkernels.kept import Kept

# CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
_DATA_TYPES = {torch.float16: 6, torch.bfloat16: 9}
_SWIZZLE_128 = 3
_PROMOTIONS = {128: 2, 256: 3}
_MAX_RANK = 5
_MAX_BOX = 256
_ALIGNMENT, _LINE_BYTES = 16, 128
_STRUCTURE_BYTES = 64
_MADE = Kept(4096)  # maps: each is a function only of addresses and sizes
_HOST_MARK = 0x54656E736F724D70  # marks a map for host/memory/tma.cpp


class TensorMap(ctypes.Structure):
    """The 128 bytes that a kernel takes as a parameter."""

    _fields_ = (("words", ctypes.c_uint64 * 16),)


def padded(*fields: tuple[str, type]) -> tuple[tuple[str, type], ...]:
    """Return the fields of a structure, and padding that makes it a multiple of 64 bytes long."""
    bare = type("Bare", (ctypes.Structure,), {"_fields_": fields})
    return (*fields, ("padding", ctypes.c_char * (-ctypes.sizeof(bare) % _STRUCTURE_BYTES)))


def tensor_map(tensor: torch.Tensor, box: Sequence[int], *, promote_bytes: int = 256) -> TensorMap:
    """Describe boxes of that many elements of a tensor, for the machine that it lies on.

    The last dimension comes first in the kernel's coordinates; a box has 128 bytes of it, which are
    swizzled. Where a box reaches over the tensor's end, zeros arrive. promote_bytes: the least that
    the L2 cache fetches at once.
    Shapes: box as many numbers as the tensor has dimensions, in the same order.
    Raises: ValueError naming what the TMA cannot do.
    """
    place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    how = (*place, tuple(box), promote_bytes)
    made = _MADE.get(how)
    if made is None:
        made = _MADE[how] = _make(tensor, tuple(box), promote_bytes)
    return made


def _make(tensor: torch.Tensor, box: tuple[int, ...], promote_bytes: int) -> TensorMap:
    _check(tensor, box)
    shape, strides, boxes = tensor.shape[::-1], _strides_bytes(tensor)[::-1], box[::-1]
    result = TensorMap()
    if tensor.device.type == "cuda":
        _encode(result, tensor, shape, strides, boxes, promote_bytes)
        return result
    # The layout that host/memory/tma.cpp reads: the same facts as the GPU's opaque bytes.
    rank = tensor.dim()
    padding = (0,) * (_MAX_RANK - rank)
    halves = (*boxes, *padding, 0)
    result.words[:] = (
        tensor.data_ptr(),
        rank | tensor.element_size() << 8,
        *shape,
        *padding,
        *strides,
        *padding,
        *(low | high << 32 for low, high in zip(halves[::2], halves[1::2], strict=True)),
        _HOST_MARK,
    )
    return result


def rows_map(tensor: torch.Tensor, tokens: int, heads: int) -> TensorMap:
    """Describe boxes of that many tokens and heads by 64 channels.

    A tensor without elements has no map, and a kernel never asks for its boxes.
    Shapes: tensor [tokens, heads, channels].
    """
    box = (tokens, heads, ATOM_COLUMNS)
    if tensor.numel() == 0:
        return TensorMap()
    if 1 not in tensor.shape:
        return tensor_map(tensor, box)
    # a dimension of length 1 may have any stride, but the TMA does not accept all of them
    strides = [
        s if n > 1 else ATOM_COLUMNS for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return tensor_map(tensor.as_strided(tensor.shape, [*strides[:-1], 1]), box)


def _strides_bytes(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(stride * tensor.element_size() for stride in tensor.stride())


def _check(tensor: torch.Tensor, box: Sequence[int]) -> None:
    if tensor.dtype not in _DATA_TYPES:
        allowed = ", ".join(str(dtype) for dtype in _DATA_TYPES)
        raise ValueError(f"dtype = {tensor.dtype}, allowed in a tensor map: {allowed}")
    if not 2 <= tensor.dim() <= _MAX_RANK or len(box) != tensor.dim():
        raise ValueError(
            f"box = {tuple(box)} of a tensor {tuple(tensor.shape)}, allowed: as many numbers as"
            f" dimensions, 2 to {_MAX_RANK}"
        )
    if tensor.numel() == 0:
        raise ValueError(f"shape = {tuple(tensor.shape)}, allowed in a tensor map: no 0")
    if not all(1 <= n <= _MAX_BOX for n in box):
        raise ValueError(f"box = {tuple(box)}, allowed: 1 to {_MAX_BOX} each")
    line = box[-1] * tensor.element_size()
    if line != _LINE_BYTES:  # a shorter one would leave a gap behind it in shared memory
        raise ValueError(f"box = {tuple(box)}: a line of {line} bytes, allowed: {_LINE_BYTES}")
    *outer, inner = tensor.stride()
    misaligned = tensor.data_ptr() % _ALIGNMENT or any(
        stride % _ALIGNMENT for stride in _strides_bytes(tensor)[:-1]
    )
    if inner != 1 or misaligned or any(stride <= 0 for stride in outer):
        raise ValueError(
            f"strides = {tensor.stride()} at address {tensor.data_ptr():#x}, allowed in a tensor"
            f" map: the last 1, the others positive multiples of {_ALIGNMENT} bytes, as the address"
        )


def _encode(
    result: TensorMap,
    tensor: torch.Tensor,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    promote_bytes: int,
) -> None:
    rank = tensor.dim()
    # The driver wants an address that is a multiple of 64, which a ctypes structure need not have.
    room = (ctypes.c_char * (ctypes.sizeof(TensorMap) + 64))()
    place = -(-ctypes.addressof(room) // 64) * 64
    with driver.current(tensor.device.index):
        driver.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(place),
            _DATA_TYPES[tensor.dtype],
            ctypes.c_uint(rank),
            ctypes.c_void_p(tensor.data_ptr()),
            (ctypes.c_uint64 * rank)(*shape),
            (ctypes.c_uint64 * (rank - 1))(*strides[1:]),
            (ctypes.c_uint * rank)(*box),
            (ctypes.c_uint * rank)(*(1,) * rank),
            0,
            _SWIZZLE_128,
            _PROMOTIONS[promote_bytes],
            0,
        )
    ctypes.memmove(ctypes.addressof(result), place, ctypes.sizeof(TensorMap))
