"""The planners by the names that people use for the libraries, and with the switches that count."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from labkernels.hardware import Gpu
from labkernels.planners import flash_attention, flash_mla, flashinfer, serving, torch_sdpa
from labkernels.planners.cut import Batch, Cut, changed
from labkernels.units import require_choice

FIXED_KEYS = 1024  # of FlashInfer's fixed splits
Planner = Callable[..., Cut]

PLANNERS: dict[str, Planner] = {
    "flashinfer:cuda_cores": flashinfer.decode_cuda_cores,
    "flashinfer:fa2": flashinfer.fa2,
    "flashinfer:fa3": flashinfer.fa3,
    "flashinfer:mla_fa2": partial(flashinfer.mla, backend="fa2"),
    "flashinfer:mla_fa3": partial(flashinfer.mla, backend="fa3"),
    "flash_attn_2": flash_attention.flash_attention_2,
    "flash_attn_3": flash_attention.flash_attention_3,
    "flash_attn_4": flash_attention.flash_attention_4,
    "flash_mla": flash_mla.flash_mla,
    "torch:sdpa": torch_sdpa.sdpa,
    "torch:flash": torch_sdpa.flash,
    "torch:efficient": torch_sdpa.efficient,
    "torch:cudnn": torch_sdpa.cudnn,
    "torch:math": torch_sdpa.math,
    "vllm:flashinfer": serving.vllm_flashinfer,
    "vllm:flash_attn": serving.vllm_flash_attention,
    "sglang:flashinfer": serving.sglang_flashinfer,
    "sglang:flash_attn": serving.sglang_flash_attention,
}


def planner(name: str) -> Planner:
    """Return the planner of a library: it takes a Batch, a Gpu, and the library's own switches.

    Raises: ValueError listing the names.

    >>> from labkernels.hardware import gpu
    >>> planner("flashinfer:fa2")(Batch((8192,), 32, 8, 128, page_size=16), gpu("h200")).label()
    '16 x 128, 32 splits of 256'
    """
    require_choice("planner", name, tuple(PLANNERS))
    return PLANNERS[name]


def _fixed(batch: Batch, gpu: Gpu) -> Cut:
    """Return fa2's cut into splits of FIXED_KEYS keys."""
    return flashinfer.fa2(batch, gpu, fixed_split_size=FIXED_KEYS // (batch.page_size or 1))


def _dense(name: str) -> Planner:
    """Return a planner that sees contiguous keys, repeated for each query head of a group."""
    return lambda batch, gpu: PLANNERS[name](
        replace(batch, kv_heads=batch.q_heads, page_size=None), gpu
    )


def _with(name: str, **switches: object) -> Planner:
    return partial(PLANNERS[name], **switches)


# Ways to decode, as a chapter lists them: a library as it is, and with each switch that keeps cuts.
WAYS: dict[str, Planner] = {
    "FlashInfer CUDA cores": PLANNERS["flashinfer:cuda_cores"],
    "FlashInfer fa2": PLANNERS["flashinfer:fa2"],
    "FlashInfer fa2, fixed_split_size": _fixed,
    "FlashInfer fa2, disable_split_kv": _with("flashinfer:fa2", disable_split_kv=True),
    "FlashAttention-2 kvcache": _with("flash_attn_2", split_kernel=True),
    "FlashAttention-2 kvcache, num_splits=1": _with(
        "flash_attn_2", split_kernel=True, num_splits=1
    ),
    "FlashAttention-3": PLANNERS["flash_attn_3"],
    "FlashAttention-3, num_splits=1": _with("flash_attn_3", num_splits=1),
    "FlashAttention-4": PLANNERS["flash_attn_4"],
    "torch flash": _dense("torch:flash"),
    "torch efficient": _dense("torch:efficient"),
    "vLLM FlashInfer": PLANNERS["vllm:flashinfer"],
    "vLLM FlashInfer, BATCH_INVARIANT": _with("vllm:flashinfer", batch_invariant=True),
    "vLLM FlashAttention-3": PLANNERS["vllm:flash_attn"],
    "vLLM FlashAttention-3, BATCH_INVARIANT": _with("vllm:flash_attn", batch_invariant=True),
    "SGLang FlashInfer": PLANNERS["sglang:flashinfer"],
    "SGLang FlashInfer, deterministic": _with("sglang:flashinfer", deterministic=True),
    "SGLang FlashAttention-3": PLANNERS["sglang:flash_attn"],
    "SGLang FlashAttention-3, deterministic": _with("sglang:flash_attn", deterministic=True),
}


def cuts(way: str, one: Batch, gpu: Gpu, sizes: Sequence[int]) -> Iterator[tuple[Cut, bool]]:
    """Yield the cut of each batch of requests like `one`, and whether it is not the cut alone.

    Raises: NotKnown where the planner's rule was not read; ValueError where the library refuses.

    >>> from labkernels.hardware import gpu
    >>> one = Batch((2048,), 32, 8, 128, page_size=16)
    >>> [other for _, other in cuts("FlashInfer fa2", one, gpu("h200"), (1, 2, 4))]
    [False, False, True]
    """
    alone = WAYS[way](one, gpu)
    for n in sizes:
        cut = WAYS[way](replace(one, kv_lens=one.kv_lens * n, q_lens=one.q_lens * n), gpu)
        yield cut, bool(changed(alone, cut))
