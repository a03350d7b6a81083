"""The one parameter of the CUDA backward kernels: lab::BackwardParams of backward.cuh, by field."""

import ctypes

POINTERS = ("q", "dout", "out", "k", "v", "lse2", "cu_seqlens_q", "cu_seqlens_k", "work")
OUTPUTS = ("dq", "dk", "dv")
ROWS = ("row_lse2", "row_delta", "dq_accum")
STRIDED = ("q", "dout", "out", "k", "v")
STRIDES = tuple(f"{name}_stride_{of}" for name in STRIDED for of in ("token", "head"))
COUNTS = ("q_heads", "kv_heads", "group", "causal")
FACTORS = ("scale", "scale_log2")


class BackwardParams(ctypes.Structure):
    """Pointers, strides in elements, counts, and the softmax scale, alone and times log2 e."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*POINTERS, *OUTPUTS, *ROWS)),
        *((name, ctypes.c_longlong) for name in (*STRIDES, "padded_rows")),
        *((name, ctypes.c_int) for name in COUNTS),
        *((name, ctypes.c_float) for name in FACTORS),
    )
