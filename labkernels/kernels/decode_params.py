"""The one parameter of the CUDA decode kernels: lab::DecodeParams of paged_kv.cuh, by field."""

import ctypes

POINTERS = ("q", "k_pool", "v_pool", "page_table", "kv_len", "out", "lse2")
PARTIALS = ("partial_o", "partial_m", "partial_l", "tickets")
STRIDES = (
    "q_stride_batch",
    "q_stride_head",
    "kv_stride_page",
    "kv_stride_token",
    "kv_stride_head",
)
COUNTS = (
    "page_table_stride",
    "max_pages",
    "page_size",
    "q_heads",
    "kv_heads",
    "group",
    "head_slices",
    "keys_per_split",
    "splits",
)


class DecodeParams(ctypes.Structure):
    """Pointers, strides in elements, counts, and the softmax scale times log2 e."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*POINTERS, *PARTIALS)),
        *((name, ctypes.c_longlong) for name in STRIDES),
        *((name, ctypes.c_int) for name in COUNTS),
        ("scale_log2", ctypes.c_float),
    )
