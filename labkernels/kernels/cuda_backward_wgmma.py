"""Runs backward_wgmma: the launches of every CUDA backward pass, with tensor maps for the TMA."""

import ctypes
from collections.abc import Mapping

import torch

from labkernels.cuda.tensor_map import TensorMap, tensor_map
from labkernels.kernels import cuda_run
from labkernels.kernels.backward_params import BackwardParams
from labkernels.kernels.backward_plan import BackwardCut
from labkernels.kernels.backward_step import BackwardRequest, BackwardStep, cut, workspace
from labkernels.kernels.cuda_backward import Stage, convert_dq, prepare_rows, step_of

PARAMS = "backward_wgmma::Params"
CHANNELS = 64  # of a box: 128 bytes, what the swizzle spans
TURN_ROWS, TURN_HALVES = 16, 2  # what one warp adds to: 16 rows, half the channels


class _Fields(ctypes.Structure):
    _fields_ = (
        ("q", TensorMap),
        ("dout", TensorMap),
        ("k", TensorMap),
        ("v", TensorMap),
        ("problem", BackwardParams),
        ("turns", ctypes.c_void_p),
    )


class Params(ctypes.Structure):
    """backward_wgmma::Params, a multiple of 64 bytes as its tensor maps want it."""

    _anonymous_ = ("fields",)
    _fields_ = (("fields", _Fields), ("padding", ctypes.c_char * (-ctypes.sizeof(_Fields) % 64)))


def prepare(request: BackwardRequest) -> BackwardStep:
    """Compile, list the blocks, describe the tensors to the TMA, and fix the launches.

    Raises: ValueError naming what the TMA cannot reach.
    """
    # A block whose dq is ordered waits for those with later keys of its head: they start before it.
    made = cut(request, last_keys_first=request.ordered)
    space, written = workspace(request, made, adds=True), ("dk", "dv", "dq_accum")
    if request.ordered:
        space |= {"turns": _turns(request, made)}
        written = (*written, "turns")

    def params(problem: BackwardParams, tensors: Mapping[str, torch.Tensor]) -> Params:
        return _params(request, problem, tensors)

    main = cuda_run.variant(request.spec, request.instance, PARAMS)
    stages = [
        prepare_rows(request, made.padded, adds=True),
        Stage(main, made.keys, written, params),
        convert_dq(request, made.padded),
    ]
    return step_of(request, stages, space, made.padded_rows)


def _turns(request: BackwardRequest, made: BackwardCut) -> torch.Tensor:
    """How many blocks have added to each part of dq_accum: none; the last one sets it back."""
    shape = (request.q.shape[1], made.padded_rows // TURN_ROWS, TURN_HALVES)
    return torch.zeros(shape, dtype=torch.int32, device=request.q.device)


def _params(
    request: BackwardRequest, problem: BackwardParams, tensors: Mapping[str, torch.Tensor]
) -> Params:
    tile, params = request.instance.tile, Params()
    params.q, params.dout = _map(request.q, tile.q_rows), _map(request.dout, tile.q_rows)
    params.k, params.v = _map(request.kv.k, tile.keys), _map(request.kv.v, tile.keys)
    params.problem = problem
    params.turns = tensors["turns"].data_ptr() if request.ordered else None
    return params


def _map(tensor: torch.Tensor, lines: int) -> TensorMap:
    """The map of a tensor; one without elements has no map, and is never asked for."""
    return tensor_map(tensor, (lines, 1, CHANNELS)) if tensor.numel() else TensorMap()
