"""Runs a CUDA backward pass, on the GPU or as its CPU build: rows prepared, then dK, dV and dq."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from labkernels.kernels import cuda_run
from labkernels.kernels.backward_ledger import cpp_instance, ordered_dq_smem
from labkernels.kernels.backward_params import (
    OUTPUTS,
    POINTERS,
    ROWS,
    STRIDED,
    STRIDES,
    BackwardParams,
)
from labkernels.kernels.backward_step import (
    BackwardRequest,
    BackwardStep,
    cut,
    make_plan,
    workspace,
)
from labkernels.kernels.cuda_run import LOG2_E, Launch, Variant
from labkernels.kernels.decode_ledger import cpp_type
from labkernels.kernels.step import blocks_per_sm

PARAMS = "lab::BackwardParams"
ROW_HEADER, ROW_THREADS = "lab/backward_rows.cuh", 256  # lab::row_threads


@dataclass(frozen=True, eq=False)
class Stage:
    """One launch of a backward pass: a kernel, its blocks, and the tensors that it writes.

    params: what the kernel takes, made of the parameter that all stages have and their tensors.
    """

    variant: Variant
    work: np.ndarray
    written: tuple[str, ...]
    params: Callable[[BackwardParams, Mapping[str, torch.Tensor]], object] = lambda p, _: p


def prepare(request: BackwardRequest) -> BackwardStep:
    """Compile, list the blocks, allocate the workspace, and fix the launches."""
    made, main = cut(request), cuda_run.variant(request.spec, request.instance, PARAMS)
    adds = not request.ordered  # else dq is a stage of its own
    keys = Stage(main, made.keys, ("dk", "dv", "dq_accum") if adds else ("dk", "dv"))
    last = convert_dq(request, made.padded) if adds else _ordered_dq(request, made.rows)
    stages = [prepare_rows(request, made.padded, adds), keys, last]
    return step_of(request, stages, workspace(request, made, adds), made.padded_rows)


def step_of(
    request: BackwardRequest,
    stages: list[Stage],
    space: Mapping[str, torch.Tensor],
    padded_rows: int,
) -> BackwardStep:
    """The step that runs these stages one after the other; the second is the one planned for."""
    tensors = _tensors(request) | space
    launched = [stage for stage in stages if len(stage.work)]
    # The first launch waits for all that came before it, and the others each for the one before.
    runs = [
        _launch(request, stage, tensors, padded_rows, early=stage is not launched[0]).prepare()
        for stage in launched
    ]
    variant = stages[1].variant
    plan = make_plan(
        request,
        blocks=len(stages[1].work),
        blocks_per_sm=blocks_per_sm(request.instance, variant.smem_bytes, request.gpu),
        smem_bytes=variant.smem_bytes,
        registers=cuda_run.registers(variant, request.gpu, request.q.device),
        launches=len(runs),
        cpu=f"CPU build, {request.gpu.arch} arithmetic",
    )
    return BackwardStep(_Sequence(tuple(runs)), request.dq, request.dk, request.dv, plan)


def prepare_rows(request: BackwardRequest, padded: np.ndarray, adds: bool) -> Stage:
    """Each row's lse2 and delta into the workspace, and zeros if dq adds up there."""
    clear, written = ("true", ROWS) if adds else ("false", ROWS[:2])
    return Stage(_row_variant(request, "backward_prepare", clear), padded, written)


def convert_dq(request: BackwardRequest, padded: np.ndarray) -> Stage:
    """Dq from dq_accum."""
    return Stage(_row_variant(request, "backward_convert"), padded, ("dq",))


def _row_variant(request: BackwardRequest, function: str, *more: str) -> Variant:
    arguments = (cpp_type(request.instance.dtype), str(request.instance.head_dim), *more)
    instance = f"lab::{function}<{', '.join(arguments)}>"
    shape = {"threads": ROW_THREADS, "smem_bytes": 0}
    include_dirs = cuda_run.include_dirs(request.spec)
    return Variant(ROW_HEADER, instance, PARAMS, **shape, include_dirs=include_dirs)


def _ordered_dq(request: BackwardRequest, rows: np.ndarray) -> Stage:
    instance = request.instance
    variant = Variant(
        request.spec.header,
        cpp_instance(instance, "ordered_dq"),
        PARAMS,
        threads=instance.tile.threads,
        smem_bytes=ordered_dq_smem(instance).total,
        include_dirs=cuda_run.include_dirs(request.spec),
    )
    return Stage(variant, rows, ("dq",))


def _tensors(request: BackwardRequest) -> dict[str, torch.Tensor]:
    named = ("q", "dout", "out", "lse2", "cu_seqlens_q", *OUTPUTS)
    kv = {"k": request.kv.k, "v": request.kv.v, "cu_seqlens_k": request.kv.cu_seqlens}
    return {name: getattr(request, name) for name in named} | kv


def _launch(
    request: BackwardRequest,
    stage: Stage,
    tensors: Mapping[str, torch.Tensor],
    padded_rows: int,
    *,
    early: bool,
) -> Launch:
    tensors = {**tensors, "work": torch.from_numpy(stage.work).to(request.q.device)}
    return Launch(
        variant=stage.variant,
        gpu=request.gpu,
        device=request.q.device,
        grid=(len(stage.work), 1, 1),
        params=stage.params(backward_params(request, tensors, padded_rows), tensors),
        tensors=tensors,
        written=frozenset(stage.written),
        checks=request.checks,
        early=early,
    )


def backward_params(
    request: BackwardRequest, tensors: Mapping[str, torch.Tensor], padded_rows: int
) -> BackwardParams:
    """The kernels' parameter; tensors by name, absent ones are null."""
    pointers = {
        name: tensors[name].data_ptr() if name in tensors else None
        for name in (*POINTERS, *OUTPUTS, *ROWS)
    }
    strides = [stride for name in STRIDED for stride in tensors[name].stride()[:2]]
    return BackwardParams(
        **pointers,
        **dict(zip(STRIDES, strides, strict=True)),
        padded_rows=padded_rows,
        q_heads=request.q.shape[1],
        kv_heads=request.kv.kv_heads,
        group=request.group,
        causal=int(request.causal),
        scale=request.scale,
        scale_log2=request.scale * LOG2_E,
    )


@dataclass(frozen=True, eq=False)
class _Sequence:
    """Runs one launch after the other, on one stream."""

    runs: tuple[Callable[[], None], ...]

    def __call__(self) -> None:
        for run in self.runs:
            run()
