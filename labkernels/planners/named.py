"""The planners by the names that people use for the libraries."""

from collections.abc import Callable
from functools import partial

from labkernels.planners import flash_attention, flashinfer, serving, torch_sdpa
from labkernels.planners.cut import Cut
from labkernels.units import require_choice

PLANNERS: dict[str, Callable[..., Cut]] = {
    "flashinfer:cuda_cores": flashinfer.decode_cuda_cores,
    "flashinfer:fa2": flashinfer.fa2,
    "flashinfer:fa3": flashinfer.fa3,
    "flashinfer:mla_fa2": partial(flashinfer.mla, backend="fa2"),
    "flashinfer:mla_fa3": partial(flashinfer.mla, backend="fa3"),
    "flash_attn_2": flash_attention.flash_attention_2,
    "flash_attn_3": flash_attention.flash_attention_3,
    "flash_attn_4": flash_attention.flash_attention_4,
    "torch:flash": torch_sdpa.flash,
    "torch:efficient": torch_sdpa.efficient,
    "torch:cudnn": torch_sdpa.cudnn,
    "torch:math": torch_sdpa.math,
    "vllm:flashinfer": serving.vllm_flashinfer,
    "vllm:flash_attn": serving.vllm_flash_attention,
    "sglang:flashinfer": serving.sglang_flashinfer,
    "sglang:flash_attn": serving.sglang_flash_attention,
}


def planner(name: str) -> Callable[..., Cut]:
    """Return the planner of a library: it takes a Batch, a Gpu, and the library's own switches.

    Raises: ValueError listing the names.

    >>> from labkernels.hardware import gpu
    >>> from labkernels.planners import Batch
    >>> planner("flashinfer:fa2")(Batch((8192,), 32, 8, 128, page_size=16), gpu("h200")).label()
    '16 x 128, 32 splits of 256'
    """
    require_choice("planner", name, tuple(PLANNERS))
    return PLANNERS[name]
