"""The one parameter of the CUDA prefill kernels: lab::PrefillParams of prefill.cuh, by field."""

import ctypes

POINTERS = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "page_table", "kv_len", "work")
OUTPUTS = ("out", "lse2")
PARTIALS = ("partial_o", "partial_m", "partial_l", "tickets")
STRIDES = (
    "q_stride_token",
    "q_stride_head",
    "k_stride_page",
    "k_stride_token",
    "k_stride_head",
    "v_stride_page",
    "v_stride_token",
    "v_stride_head",
)
COUNTS = (
    "page_table_stride",
    "max_pages",
    "page_size",
    "page_shift",
    "page_inverse",
    "q_heads",
    "kv_heads",
    "group",
    "group_shift",
    "group_inverse",
    "keys_per_split",
    "splits",
    "causal",
)


class PrefillParams(ctypes.Structure):
    """Pointers, strides in elements, counts, and the softmax scale times log2 e."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*POINTERS, *OUTPUTS, *PARTIALS)),
        *((name, ctypes.c_longlong) for name in STRIDES),
        *((name, ctypes.c_int) for name in COUNTS),
        ("scale_log2", ctypes.c_float),
    )
