"""Runs the small attention kernel in Triton on NumPy arrays: on the GPU, or interpreted."""

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
    """Return the kernel of a source for Triton's compiler, with its default warps and stages."""
    types = dict.fromkeys(POINTERS, "*fp32") | dict.fromkeys(NUMBERS, "i32")
    types |= {"page_table": "*i32", "scale_log2": "fp32"}
    constants = {"D": DIM, "ROWS": ROWS, "KEYS": KEYS}
    return TritonVariant(source, "attend", types, constants, arch, warps=4, stages=3)


def attend(request: Request, kernel: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return out [n_queries, heads, 32] and lse2; `kernel` is a module in place of the book's own.

    The kernel runs on the GPU if the machine has one, and is interpreted otherwise.
    Raises: RuntimeError if Triton is missing, or was imported as a compiler without a GPU.
    """
    kernel = kernel or load()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = {name: torch.from_numpy(array).to(device) for name, array in request.draw().items()}
    heads = (request.n_queries, request.kv_heads * request.group)
    out = torch.full((*heads, DIM), math.nan, device=device)
    lse2 = torch.full(heads, math.nan, device=device)
    blocks = -(-request.n_queries * request.group // ROWS)
    kernel.attend[blocks, request.kv_heads](
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
    return out.cpu().numpy(), lse2.cpu().numpy()


def load() -> Any:
    """Import the kernel: Triton compiles it where there is a GPU, and interprets it elsewhere."""
    return triton_run.load(KERNEL, on_gpu=torch.cuda.is_available())
