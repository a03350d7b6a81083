"""Runs prefill_wgmma_fp8: tensor maps of pairs of codes, and the launch of prefill_wgmma."""

import ctypes
import functools

import torch

from labkernels.cuda.gpu.tensor_map import TensorMap, rows_map
from labkernels.kernels.packed_gqa import cuda as packed
from labkernels.kernels.packed_gqa.call import PackedCall, schedule_of
from labkernels.kernels.prefill import cuda
from labkernels.kernels.prefill.cuda import PrefillParams
from labkernels.kernels.prefill.wgmma.launch import L2_SHARE, params_with
from labkernels.kernels.program import Program

DESCALES = ("q_descale", "k_descale", "v_descale")


class Descales(ctypes.Structure):
    """Mirrors prefill_wgmma_fp8::Descales."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in DESCALES),
        ("strides", ctypes.c_longlong * (2 * len(DESCALES))),
    )


class Problem(PrefillParams):
    """Mirrors prefill_wgmma_fp8::Problem."""

    _fields_ = (("descales", Descales),)


def program(call: PackedCall) -> Program:
    """List the work tiles, describe the tensors to the TMA, and fix the launch."""
    k, v, group, keys = call.kv.k, call.kv.v, call.group, call.choice.instance.tile.keys
    tile_rows = call.choice.instance.rows // group * group  # a box of Q is whole tokens
    cached_keys = int(L2_SHARE * call.gpu.l2_bytes) // (k.shape[-1] + v.shape[-1])
    made = schedule_of(call, tile_rows=tile_rows, cached_keys=cached_keys)
    problem = Problem()
    plain = cuda.params_of(call, made)
    ctypes.memmove(ctypes.byref(problem), ctypes.byref(plain), ctypes.sizeof(plain))
    strides = [stride for name in DESCALES for stride in call.variant_tensors[name].stride()]
    problem.descales.strides[:] = strides
    blocks = min(len(made.work), call.choice.slots)
    params = params_with(Problem)(
        problem=problem, work_tiles=len(made.work), blocks=blocks, tile_rows=tile_rows
    )
    of_rows = functools.partial(_pairs_map, tokens=tile_rows // group, heads=group)
    of_keys = functools.partial(_pairs_map, tokens=keys, heads=1)
    maps = {"q": ("q", of_rows), "k": ("k", of_keys), "v": ("v", of_keys)}
    return packed.program(call, made, params, blocks=blocks, maps=maps, next_work_tile=1)


def _pairs_map(codes: torch.Tensor, **box: int) -> TensorMap:
    """Describe boxes of 128 channels, as 64 pairs of codes; the TMA copies their bits."""
    return rows_map(codes.view(torch.bfloat16), **box)
