"""Runs prefill_wgmma: tensor maps for Q, K and V, and persistent blocks for the work list."""

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from labkernels.cuda.compiler.specialization import ATOM_COLUMNS, ATOM_ROWS
from labkernels.cuda.gpu.tensor_map import TensorMap, padded, rows_map, tensor_map
from labkernels.kernels.packed_gqa import cuda as packed
from labkernels.kernels.packed_gqa.call import PackedCall, schedule_of
from labkernels.kernels.packed_gqa.schedule import Schedule
from labkernels.kernels.prefill import cuda
from labkernels.kernels.prefill.cuda import PrefillParams
from labkernels.kernels.program import Program

# The share of the L2 cache for K and V of the heads whose tiles start together. Each of the cache's
# two partitions may hold a copy of a key, and Q and the output pass through the cache too.
L2_SHARE = 0.15


class PageSteps(ctypes.Structure):
    """Mirrors prefill_wgmma::PageSteps."""

    _fields_ = (("page", ctypes.c_int), ("head", ctypes.c_int))


@functools.cache
def params_with(problem: type[PrefillParams]) -> type[ctypes.Structure]:
    """Return the mirror of prefill_wgmma::ParamsWith, given the parameter of the problem."""
    fields = padded(
        ("q", TensorMap),
        ("k", TensorMap),
        ("v", TensorMap),
        ("problem", problem),
        ("next_work_tile", ctypes.c_void_p),
        ("work_tiles", ctypes.c_int),
        ("blocks", ctypes.c_int),
        ("tile_rows", ctypes.c_int),
        ("box_keys", ctypes.c_int),
        ("k_steps", PageSteps),
        ("v_steps", PageSteps),
    )
    return type("Params", (ctypes.Structure,), {"_fields_": fields})


def program(call: PackedCall) -> Program:
    """List the work tiles, describe the tensors to the TMA, and fix the launch."""
    return program_of(call, cuda.params_of, rows_map)


def program_of(
    call: PackedCall,
    problem_of: Callable[[PackedCall, Schedule], PrefillParams],
    describe: Callable[..., TensorMap],
) -> Program:
    """Return the launch of a problem; describe(tensor, tokens, heads) makes maps of ragged rows."""
    k, v, group, keys = call.kv.k, call.kv.v, call.group, call.choice.instance.tile.keys
    tile_rows = call.choice.instance.rows // group * group  # a box of Q is whole tokens
    # K and V of this many keys of one KV head fit their share of the L2 cache.
    key_bytes = (k.shape[-1] + v.shape[-1]) * k.element_size()
    cached_keys = int(L2_SHARE * call.gpu.l2_bytes) // key_bytes
    made = schedule_of(call, tile_rows=tile_rows, cached_keys=cached_keys)
    tiles, problem = len(made.work), problem_of(call, made)
    blocks = min(tiles, call.choice.slots)
    made_of = {"problem": problem, "work_tiles": tiles, "blocks": blocks, "tile_rows": tile_rows}
    params: Any = params_with(type(problem))(**made_of)
    of_rows = functools.partial(describe, tokens=tile_rows // group, heads=group)
    of_keys = functools.partial(describe, tokens=keys, heads=1)
    if call.kv.layout == "paged":
        # beyond the channels of a head, a box of a page would have those of the next head
        padded_dims = call.choice.kernel.padded_dims
        box_keys = 0 if k.shape[-1] in padded_dims else _box_keys(keys, k.shape[1])
        params.box_keys = box_keys
        params.k_steps, params.v_steps = _page_steps(k), _page_steps(v)
        of_keys = functools.partial(_pages_map, box_keys=box_keys)
    maps = {"q": ("q", of_rows), "k": ("k", of_keys), "v": ("v", of_keys)}
    return packed.program(call, made, params, blocks=blocks, maps=maps, next_work_tile=1)


def _page_steps(pool: torch.Tensor) -> PageSteps:
    """Return the distances of a pool's pages and of its heads, in multiples of `_unit`."""
    page, _, head, _ = _strides(pool)
    return PageSteps(page // _unit(pool), head // _unit(pool))


def _unit(pool: torch.Tensor) -> int:
    """Return the elements of which the distances of pages and of heads are whole multiples."""
    page, _, head, _ = _strides(pool)
    return math.gcd(page, head)


def _strides(pool: torch.Tensor) -> tuple[int, ...]:
    """Return strides in elements; a dimension of length 1, whose stride means nothing, gets 64."""
    return tuple(
        s if n > 1 else ATOM_COLUMNS for n, s in zip(pool.shape, pool.stride(), strict=True)
    )


def _pages_map(pool: torch.Tensor, *, box_keys: int) -> TensorMap:
    """Return the map of a pool, whose box lies within a page and KV head; blank without boxes.

    The kernel's coordinates are, in this order: the channel in a group of 64, the key in an octet,
    the group of channels, the octet in a page, and the place of the page and head in `_unit`s.
    """
    if pool.numel() == 0 or box_keys == 0:
        return TensorMap()
    pages, page_size, heads, channels = pool.shape
    row, unit, steps = _strides(pool)[1], _unit(pool), _page_steps(pool)
    apart = (pages - 1) * steps.page + (heads - 1) * steps.head + 1
    lines = channels // ATOM_COLUMNS
    view = pool.as_strided(
        (apart, page_size // ATOM_ROWS, lines, ATOM_ROWS, ATOM_COLUMNS),
        (unit, ATOM_ROWS * row, ATOM_COLUMNS, row, 1),
    )
    return tensor_map(view, (1, box_keys // ATOM_ROWS, lines, ATOM_ROWS, ATOM_COLUMNS))


def _box_keys(keys: int, page_size: int) -> int:
    """Return the keys of a box, which divide a tile and a page; 0 if a page has no whole octets."""
    shared = math.gcd(keys, page_size)
    return shared if shared % ATOM_ROWS == 0 else 0
