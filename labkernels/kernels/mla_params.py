"""The one parameter of the CUDA MLA kernels: lab::MlaParams of mla.cuh, by field."""

import ctypes

POINTERS = ("q_nope", "q_pe", "ckv", "kpe", "cu_seqlens_q", "page_table", "kv_len", "work")
OUTPUTS = ("out", "lse2")
PARTIALS = ("partial_o", "partial_m", "partial_l", "tickets")
STRIDES = (
    "q_nope_stride_token",
    "q_nope_stride_head",
    "q_pe_stride_token",
    "q_pe_stride_head",
    "ckv_stride_page",
    "ckv_stride_token",
    "kpe_stride_page",
    "kpe_stride_token",
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


class MlaParams(ctypes.Structure):
    """Pointers, strides in elements, counts, and the softmax scale times log2 e."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*POINTERS, *OUTPUTS, *PARTIALS)),
        *((name, ctypes.c_longlong) for name in STRIDES),
        *((name, ctypes.c_int) for name in COUNTS),
        ("scale_log2", ctypes.c_float),
    )
