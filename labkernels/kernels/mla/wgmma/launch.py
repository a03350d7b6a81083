"""Runs mla_wgmma: the launch of every CUDA MLA kernel, with tensor maps of the two pools."""

import ctypes
import functools
import math

import torch

from labkernels.cuda.compiler.specialization import ATOM_COLUMNS, ATOM_ROWS
from labkernels.cuda.gpu.tensor_map import TensorMap, padded, tensor_map
from labkernels.kernels.caches.latent import LatentKV
from labkernels.kernels.mla import cuda
from labkernels.kernels.mla.call import MlaCall
from labkernels.kernels.mla.cuda import MlaParams
from labkernels.kernels.mla.wgmma.spec import HALF_LINES
from labkernels.kernels.packed_gqa.call import schedule_of
from labkernels.kernels.packed_gqa.schedule import Schedule
from labkernels.kernels.program import Program


class Params(ctypes.Structure):
    """mla_wgmma::Params, by field."""

    _fields_ = padded(
        ("ckv_map", TensorMap),
        ("kpe_map", TensorMap),
        ("mla", MlaParams),
        ("box_keys", ctypes.c_int),
        ("box_shift", ctypes.c_int),
    )


def program(call: MlaCall) -> Program:
    """Make the tensor maps, and fix the launch of an MLA decode."""
    made = schedule_of(call)
    keys = box_keys(call.kv, made, call.choice.instance.tile.keys)
    params, maps = Params(mla=cuda.params_of(call, made), box_keys=keys), {}
    if keys:
        params.box_shift = keys.bit_length() - 1
        octets = keys // ATOM_ROWS
        maps = {
            "ckv_map": ("ckv", functools.partial(_box_map, box=(octets, HALF_LINES))),
            "kpe_map": ("kpe", functools.partial(_box_map, box=(octets,))),
        }
    return cuda.with_merge(call, made, params, maps=maps)


def _box_map(pool: torch.Tensor, *, box: tuple[int, ...]) -> TensorMap:
    """Return the map of a pool, in boxes of octets of keys and, of several lines, some lines."""
    view = _octets(pool) if len(box) > 1 else _octets(pool).squeeze(1)
    # A line's neighbour in memory is another line of the box, so that L2 should not fetch both at
    # once.
    return tensor_map(view, (*box, ATOM_ROWS, ATOM_COLUMNS), promote_bytes=128)


def _octets(pool: torch.Tensor) -> torch.Tensor:
    """View a pool as [octets of keys, lines of 64 channels, keys, channels]."""
    _, page_size, channels = pool.shape
    stride = pool.stride(1)
    return pool.as_strided(
        (pool.shape[0] * page_size // ATOM_ROWS, channels // ATOM_COLUMNS, ATOM_ROWS, ATOM_COLUMNS),
        (ATOM_ROWS * stride, ATOM_COLUMNS, stride, 1),
    )


def box_keys(kv: LatentKV, made: Schedule, keys: int) -> int:
    """Return keys per box, by which pages, splits and blocks of `keys` are whole boxes, or 0.

    If no box fits, the answer is 0, and the kernel's threads copy line by line.
    """
    split = made.keys_per_split if made.splits > 1 else 0  # one split begins at key 0
    box = math.gcd(keys, kv.page_size, split)
    return box if box % ATOM_ROWS == 0 and _dense(kv.ckv) and _dense(kv.kpe) else 0


def _dense(pool: torch.Tensor) -> bool:
    """Return whether all neighbouring keys have the same distance, also across pages."""
    page, token, _ = pool.stride()
    return pool.numel() > 0 and token > 0 and page == pool.shape[1] * token
