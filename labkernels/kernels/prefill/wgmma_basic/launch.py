"""Runs prefill_wgmma_basic: tensor maps for Q, K and V, and a block per tile, except in STAY."""

import ctypes
import functools

from labkernels.cuda.gpu.tensor_map import TensorMap, padded, rows_map
from labkernels.kernels.packed_gqa import cuda as packed
from labkernels.kernels.packed_gqa.call import PackedCall, schedule_of
from labkernels.kernels.prefill import cuda
from labkernels.kernels.prefill.cuda import PrefillParams
from labkernels.kernels.program import Program

STAY = ("persistent", "ahead")  # rungs whose blocks take one tile after another


class Params(ctypes.Structure):
    """prefill_wgmma_basic::Params."""

    _fields_ = padded(
        ("q", TensorMap),
        ("k", TensorMap),
        ("v", TensorMap),
        ("problem", PrefillParams),
        ("work_tiles", ctypes.c_int),
        ("blocks", ctypes.c_int),
        ("tile_rows", ctypes.c_int),
    )


def program(call: PackedCall) -> Program:
    """List the work tiles, describe the tensors to the TMA, and fix the launch."""
    group, tile = call.group, call.choice.instance.tile
    tile_rows = tile.q_rows // group * group  # a box of Q is whole tokens, each with its heads
    made = schedule_of(call, tile_rows=tile_rows)
    of_keys = functools.partial(rows_map, tokens=tile.keys, heads=1)
    of_rows = functools.partial(rows_map, tokens=tile_rows // group, heads=group)
    maps = {"q": ("q", of_rows), "k": ("k", of_keys), "v": ("v", of_keys)}
    tiles, problem = len(made.work), cuda.params_of(call, made)
    blocks = min(tiles, call.choice.slots) if tile.overlap in STAY else tiles
    params = Params(problem=problem, work_tiles=tiles, blocks=blocks, tile_rows=tile_rows)
    return packed.program(call, made, params, blocks=blocks, maps=maps)
