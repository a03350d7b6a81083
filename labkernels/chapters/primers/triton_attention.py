"""Runs the small attention kernel in Triton, interpreted, on NumPy arrays."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labkernels.chapters.primers.small_attention import DIM, KEYS, Request
from labkernels.cuda import triton_run
from labkernels.cuda.compiler.triton import TritonVariant
from labkernels.units import LOG2_E

KERNEL = "labkernels.chapters.primers.attention_triton"
ROWS = 16
POINTERS = ("q", "k_pool", "v_pool", "page_table", "out", "lse2")
NUMBERS = ("n_queries", "group", "kv_heads", "kv_len", "page_size", "causal")


def variant(source: Path, *, arch: str) -> TritonVariant:
    """The kernel of a source for Triton's compiler, with its default warps and stages."""
    types = dict.fromkeys(POINTERS, "*fp32") | dict.fromkeys(NUMBERS, "i32")
    types |= {"page_table": "*i32", "scale_log2": "fp32"}
    constants = {"D": DIM, "ROWS": ROWS, "KEYS": KEYS}
    return TritonVariant(source, "attend", types, constants, arch, warps=4, stages=3)


def attend(request: Request, update=None) -> tuple[np.ndarray, np.ndarray]:
    """Return out [n_queries, heads, 32] and lse2; `update` takes the place of the kernel's own.

    Raises: RuntimeError if Triton is missing, or was imported without its interpreter.
    """
    kernel: Any = triton_run.interpreted(KERNEL)
    inputs = {name: torch.from_numpy(array) for name, array in request.draw().items()}
    heads = (request.n_queries, request.kv_heads * request.group)
    out, lse2 = torch.full((*heads, DIM), math.nan), torch.full(heads, math.nan)
    own, kernel.update = kernel.update, update or kernel.update
    try:
        kernel.attend[(-(-request.n_queries * request.group // ROWS), request.kv_heads)](
            *inputs.values(),
            out,
            lse2,
            request.n_queries,
            request.group,
            request.kv_heads,
            request.kv_len,
            request.page_size,
            int(request.causal),
            LOG2_E / math.sqrt(DIM),
            D=DIM,
            ROWS=ROWS,
            KEYS=KEYS,
        )
    finally:
        kernel.update = own
    return out.numpy(), lse2.numpy()
