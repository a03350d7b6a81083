"""The TMA on the CPU puts the bytes of a box where they belong, and adds runs of bytes."""

import ctypes

import numpy as np
import pytest
import torch

from labkernels.cuda.gpu.tensor_map import TensorMap, tensor_map
from labkernels.cuda.host import build
from tests.cuda import machines
from tests.cuda.host.small_kernels import place

RNG = np.random.default_rng(3)
SMEM_BYTES = 65536 + 1024


class Params(ctypes.Structure):
    """The struct boxes::Params."""

    _fields_ = (
        ("map", TensorMap),
        ("values", ctypes.c_void_p),
        ("corners", ctypes.c_void_p),
        ("tensor", ctypes.c_void_p),
        ("box_bytes", ctypes.c_int),
        ("offset", ctypes.c_int),
        ("filler", ctypes.c_int * 8),
    )


def lines(tensor, box, corner):
    """Return which slices of the tensor a box at a corner (innermost first) has, and where."""
    starts = corner[len(box) - 1 :: -1]
    inside = [
        (max(start, 0), max(min(start + n, size), max(start, 0)))
        for start, n, size in zip(starts, box, tensor.shape, strict=True)
    ]
    there = tuple(slice(*ends) for ends in inside)
    here = tuple(
        slice(low - start, high - start) for (low, high), start in zip(inside, starts, strict=True)
    )
    return there, here


def boxes_of(tensor, box, corners):
    """Return each box of the tensor, with zeros outside the tensor."""
    result = torch.zeros((len(corners), *box), dtype=tensor.dtype)
    for corner, values in zip(corners, result, strict=True):
        there, here = lines(tensor, box, corner)
        values[here] = tensor[there]
    return result


def swizzled(boxes, first_line=0):
    """Return boxes of 128-byte lines as the swizzle stores them, from line `first_line` on."""
    raw = boxes.contiguous().view(torch.uint8).reshape(len(boxes), -1, 8, 16).numpy()
    lines_there = first_line + np.arange(raw.shape[1])
    order = np.arange(8)[None, :] ^ (lines_there % 8)[:, None]
    moved = np.take_along_axis(raw, order[None, :, :, None], axis=2)
    return torch.from_numpy(moved).reshape(len(boxes), -1).view(boxes.dtype).reshape(boxes.shape)


def normal(shape, dtype):
    return torch.from_numpy(RNG.standard_normal(shape)).to(dtype)


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(
        *(x.cpu().contiguous().view(torch.uint8) for x in (a, b))
    )


def run(machine, instance, tensor, values, box, corners, *, offset=0, known=None):
    """Move boxes between a tensor and values [box, ...]; return both afterwards.

    known: the tensor that the launch names, if it is not the map's.
    """
    tensor, values = tensor.to(machine), values.to(machine)
    rows = [[*corner, 0, 0, 0][:5] for corner in corners]
    table = torch.tensor(rows, dtype=torch.int32, device=machine)
    made = TensorMap() if box is None else tensor_map(tensor, box)
    n_bytes = values[0].numel() * values.element_size()
    machines.launch(
        machine,
        "boxes.cuh",
        f"boxes::{instance}",
        Params(
            made, values.data_ptr(), table.data_ptr(), tensor.data_ptr(), n_bytes, offset=offset
        ),
        {"tensor": tensor if known is None else known, "values": values, "corners": table},
        written=("values",) if instance.startswith("loads") else ("tensor",),
        grid=(len(corners), 1, 1),
        threads=32,
        smem_bytes=SMEM_BYTES,
    )
    return tensor.cpu(), values.cpu()


def test_the_swizzle_is_of_the_address_wherever_a_box_begins():
    tensor = normal((12, 64), torch.float16)
    want = swizzled(boxes_of(tensor, (5, 64), [(0, 3)]), first_line=3)
    values = torch.full_like(want, float("nan"))
    _, found = run(machines.CPU, "loads<2>", tensor, values, (5, 64), [(0, 3)], offset=3 * 32)
    assert same_bits(found, want)


LOADS = [
    # shape, box, corners
    ((70, 200), (20, 64), [(0, 0), (-8, -1), (152, 60), (40, 45)]),
    ((3, 50, 64), (2, 20, 64), [(0, 0, 0), (-8, -1, 1), (56, 45, 2), (8, 2, -1)]),
    ((3, 4, 5, 64), (2, 2, 3, 64), [(0, 0, 0, 0), (-8, 3, -1, 2), (8, -2, 3, -1), (0, 0, 4, 3)]),
    ((3, 2, 4, 5, 64), (1, 2, 3, 2, 64), [(0, 0, 0, 0, 0), (0, -1, 2, 1, 2), (0, 4, 0, 0, -1)]),
]


def check_loads(machine, shape, box, corners):
    tensor = normal(shape, torch.bfloat16)
    want = swizzled(boxes_of(tensor, box, corners))
    values = torch.full_like(want, float("nan"))
    _, found = run(machine, f"loads<{len(shape)}>", tensor, values, box, corners)
    assert same_bits(found, want)


@pytest.mark.parametrize(("shape", "box", "corners"), LOADS)
def test_a_swizzled_box_has_its_chunks_where_wgmma_looks(shape, box, corners):
    check_loads(machines.CPU, shape, box, corners)


def check_runs(machine):
    """bulk_load and bulk_add: out[i] += in[i], by blocks that add to the same place.

    The run that is alone in its row adds zeros of both signs, subnormal numbers, infinity and NaN.
    A sum that is NaN has one bit pattern.
    """
    tensor, values = normal((4, 4096), torch.float32), normal((6, 4096), torch.float32)
    values = torch.round(values * 64) / 64  # their sums are exact, in any order
    tensor = torch.round(tensor * 64) / 64
    tiny, alone = torch.finfo(torch.float32).smallest_normal, 2
    special = (0, -0.0, tiny, -tiny, tiny / 4, torch.inf, torch.nan, -tiny / 2)
    tensor[alone, :8] = torch.tensor(special)
    special = (-0.0, -0.0, tiny / 2, tiny / 2, -tiny / 8, -torch.inf, 1, tiny / 2)
    values[alone, :8] = torch.tensor(special)
    corners = [(4096 * (i % 4), 0) for i in range(6)]
    want = tensor.clone()
    for i in range(6):
        want[i % 4] += values[i]
    want.view(torch.int32)[want.isnan()] = torch.iinfo(torch.int32).max
    found, _ = run(machine, "runs", tensor, values, None, corners)
    assert same_bits(found, want)


def test_runs_of_bytes_are_loaded_and_added():
    check_runs(machines.CPU)


@pytest.mark.parametrize(("instance", "options", "marker", "says"), [
    ("loads<3>", {}, "3", "tma_load at {here}: 3 coordinates in a tensor of 2 dimensions"),
    ("loads<2>", {"box": None}, "2", "tma_load at {here}: the map was not made by tensor_map"),
    ("loads<2>", {"offset": 4}, "2", "tma_load at {here}: shared byte 16 is not a multiple of 128"),
    ("loads<2>", {"offset": 16544}, "2", "tma_load of 512 bytes at {here}: shared memory out of"),
    ("loads<2>", {"corners": [(4, 0)]}, "2", "x = 4 elements of 2 bytes, allowed: multiples of 16"),
    ("loads<2>", {"known": torch.zeros(4)}, "2", "tma_load of 128 bytes at {here} is out of"),
])  # fmt: skip
def test_a_box_that_cannot_be(instance, options, marker, says):
    tensor = torch.zeros(16, 64, dtype=torch.float16)
    values = torch.zeros(1, 4, 64, dtype=torch.float16)
    request = {"box": (4, 64), "corners": [(0, 0)]} | options
    with pytest.raises(build.HostKernelError) as caught:
        run(machines.CPU, instance, tensor, values, **request)
    assert says.format(here=place("boxes.cuh", marker)) in str(caught.value)
