"""The TMA on the CPU: which bytes of a box land where, and which are stored or added."""

import ctypes

import numpy as np
import pytest
import torch

from labkernels.cuda import host
from labkernels.cuda.tensor_map import TensorMap, tensor_map
from tests.cuda.host.small_kernels import KERNELS

RNG = np.random.default_rng(3)
SMEM_BYTES = 65536 + 1024


class Params(ctypes.Structure):
    _fields_ = (
        ("map", TensorMap),
        ("to", TensorMap),
        ("out", ctypes.c_void_p),
        ("corners", ctypes.c_void_p),
        ("box_bytes", ctypes.c_int),
        ("filler", ctypes.c_int * 11),
    )


def boxes_of(tensor, box, corners):
    """Each box of the tensor, zeros where it has nothing; corners innermost coordinate first."""
    result = np.zeros((len(corners), *box), tensor.dtype)
    for corner, out in zip(corners, result, strict=True):
        for place in np.ndindex(*box):
            index = tuple(i + c for i, c in zip(place, corner[len(box) - 1 :: -1], strict=True))
            if all(0 <= i < n for i, n in zip(index, tensor.shape, strict=True)):
                out[place] = tensor[index]
    return result


def swizzled(lines):
    """Lines of 128 bytes as they stand in shared memory from a multiple of 1024 bytes on."""
    flat = lines.reshape(lines.shape[0], -1, 8, 16)
    order = np.arange(8)[None, :] ^ (np.arange(flat.shape[1]) % 8)[:, None]
    return np.take_along_axis(flat, order[None, :, :, None], axis=2)


def launch(instance, tensor, box, corners, values, *, swizzle_bytes=0, writable=False, checks=True):
    corners = np.array([[*corner, 0, 0, 0][:4] for corner in corners], np.int32)
    made = tensor_map(tensor, box, swizzle_bytes=swizzle_bytes)
    params = Params(made, made, values.ctypes.data, corners.ctypes.data, values[0].nbytes)
    whole = tensor.untyped_storage()
    host.build(
        "boxes.cuh",
        instance=f"boxes::{instance}",
        params="boxes::Params",
        include_dirs=[KERNELS],
        checks=checks,
    ).launch(
        grid=(len(corners), 1, 1),
        threads=32,
        smem_bytes=SMEM_BYTES,
        params=params,
        ranges=[
            host.GlobalRange("tensor", whole.data_ptr(), whole.nbytes(), writable=writable),
            host.GlobalRange("corners", corners.ctypes.data, corners.nbytes, writable=False),
            host.GlobalRange("values", values.ctypes.data, values.nbytes, writable=not writable),
        ],
    )


CASES = [
    # shape, box, corners
    ((37, 40), (5, 24), [(0, 0), (8, 30), (24, 36), (-3, -2), (39, -4), (-24, 0), (41, 40)]),
    ((5, 9, 48), (2, 3, 16), [(0, 0, 0), (33, 7, 4), (-5, -1, -1), (3, 20, 0), (47, 8, 4)]),
    ((3, 4, 5, 16), (2, 2, 3, 8), [(0, 0, 0, 0), (-2, 3, -1, 2), (9, -2, 3, -1), (0, 0, 4, 3)]),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("shape", "box", "corners"), CASES)
def test_a_box_lands_with_zeros_outside_the_tensor(shape, box, corners, dtype):
    tensor = torch.from_numpy(RNG.standard_normal(shape)).to(dtype)
    want = boxes_of(tensor.numpy(), box, corners)
    found = np.full_like(want, np.nan)
    launch(f"loads<{len(shape)}>", tensor, box, corners, found)
    assert np.array_equal(found, want)


@pytest.mark.parametrize("shape", [(70, 200), (3, 50, 64)])
def test_a_swizzled_box_has_its_chunks_where_wgmma_looks(shape):
    box = (*(2, 20)[: len(shape) - 2], 20, 64)[-len(shape) :]
    corners = [(0, 0, 0), (-8, -1, 1), (150, 60, 2), (40, 45, -1)]
    tensor = torch.from_numpy(RNG.standard_normal(shape)).to(torch.bfloat16)
    corners = [corner[: len(shape)] for corner in corners]
    bits = tensor.view(torch.uint16).numpy()
    want = swizzled(boxes_of(bits, box, corners).view(np.uint8).reshape(len(corners), -1))
    found = np.full_like(boxes_of(bits, box, corners), 0xFFFF)
    launch(f"loads<{len(shape)}>", tensor, box, corners, found, swizzle_bytes=128)
    assert np.array_equal(found.view(np.uint8).ravel(), want.ravel())
