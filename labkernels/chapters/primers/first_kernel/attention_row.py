"""Runs one row of attention, of 4 keys in 2 KV tiles, in CUDA and in Triton on NumPy arrays."""

from pathlib import Path

import numpy as np
import torch

from labkernels.chapters.primers.first_kernel.standard_cuda import launch
from labkernels.cuda import triton_run

KEYS, DIM = 2, 2  # keys of a KV tile; channels
_TRITON = "labkernels.chapters.primers.first_kernel.attention_row_triton"


def source() -> str:
    """Return the text of the CUDA kernel."""
    return Path(__file__).with_name("attention_row.cu").read_text(encoding="utf-8")


def cuda(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the output. Shapes: q [2], k and v [keys, 2], float32 -> [2]; the keys are even."""
    out = np.full(DIM, np.nan, np.float32)
    launch(source(), "attend<<<1, 2>>>(q, k, v, out, keys)", q=q, k=k, v=v, out=out, keys=len(k))
    return out


def triton(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the output as `cuda`, on the GPU or by Triton's interpreter.

    Raises: RuntimeError if Triton is missing, or was imported as a compiler without a GPU.
    """
    on_gpu = torch.cuda.is_available()
    given = [torch.from_numpy(x).to("cuda" if on_gpu else "cpu") for x in (q, k, v)]
    out = torch.full_like(given[0], torch.nan)
    kernel = triton_run.load(_TRITON, on_gpu=on_gpu)
    kernel.attend[(1,)](*given, out, len(k), KEYS=KEYS, D=DIM)
    return out.cpu().numpy()
