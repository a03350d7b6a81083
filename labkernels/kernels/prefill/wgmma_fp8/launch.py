"""Runs prefill_wgmma_fp8: tensor maps of pairs of codes, and the launch of prefill_wgmma."""

import ctypes

import torch

from labkernels.cuda.gpu.tensor_map import TensorMap, rows_map
from labkernels.kernels.packed_gqa.call import PackedCall
from labkernels.kernels.packed_gqa.schedule import Schedule
from labkernels.kernels.prefill import cuda
from labkernels.kernels.prefill.cuda import PrefillParams
from labkernels.kernels.prefill.wgmma.launch import program_of
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
    """Return the launch of prefill_wgmma, whose problem has descales."""
    return program_of(call, _problem, _pairs_map)


def _problem(call: PackedCall, made: Schedule) -> Problem:
    problem, plain = Problem(), cuda.params_of(call, made)
    ctypes.memmove(ctypes.byref(problem), ctypes.byref(plain), ctypes.sizeof(plain))
    strides = [stride for name in DESCALES for stride in call.variant_tensors[name].stride()]
    problem.descales.strides[:] = strides
    return problem


def _pairs_map(codes: torch.Tensor, **box: int) -> TensorMap:
    """Describe boxes of 128 channels, as 64 pairs of codes; the TMA copies their bits."""
    return rows_map(codes.view(torch.bfloat16), **box)
