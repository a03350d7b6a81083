"""The planners that were read, by name, each with the switches that keep its cut."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from labkernels.hardware import Gpu
from labkernels.planners import flashinfer, serving, torch_sdpa
from labkernels.planners.cut import Batch, Cut, changed
from labkernels.planners.flash_attention import (
    flash_attention_2,
    flash_attention_3,
    flash_attention_4,
)

FIXED_KEYS = 1024  # of FlashInfer's fixed splits
Planner = Callable[[Batch, Gpu], Cut]


def _fixed(batch: Batch, gpu: Gpu) -> Cut:
    """Return fa2's cut into splits of FIXED_KEYS keys."""
    return flashinfer.fa2(batch, gpu, fixed_split_size=FIXED_KEYS // (batch.page_size or 1))


def _dense(planner: Planner) -> Planner:
    """Return a planner that sees contiguous keys, repeated for each query head of a group."""
    return lambda batch, gpu: planner(replace(batch, kv_heads=batch.q_heads, page_size=None), gpu)


_kvcache = partial(flash_attention_2, split_kernel=True)
PLANNERS: dict[str, Planner] = {
    "FlashInfer CUDA cores": flashinfer.decode_cuda_cores,
    "FlashInfer fa2": flashinfer.fa2,
    "FlashInfer fa2, fixed_split_size": _fixed,
    "FlashInfer fa2, disable_split_kv": partial(flashinfer.fa2, disable_split_kv=True),
    "FlashAttention-2 kvcache": _kvcache,
    "FlashAttention-2 kvcache, num_splits=1": partial(_kvcache, num_splits=1),
    "FlashAttention-3": flash_attention_3,
    "FlashAttention-3, num_splits=1": partial(flash_attention_3, num_splits=1),
    "FlashAttention-4": flash_attention_4,
    "torch flash": _dense(torch_sdpa.flash),
    "torch efficient": _dense(torch_sdpa.efficient),
    "vLLM FlashInfer": serving.vllm_flashinfer,
    "vLLM FlashInfer, BATCH_INVARIANT": partial(serving.vllm_flashinfer, batch_invariant=True),
    "vLLM FlashAttention-3": serving.vllm_flash_attention,
    "vLLM FlashAttention-3, BATCH_INVARIANT": partial(
        serving.vllm_flash_attention, batch_invariant=True
    ),
    "SGLang FlashInfer": serving.sglang_flashinfer,
    "SGLang FlashInfer, deterministic": partial(serving.sglang_flashinfer, deterministic=True),
    "SGLang FlashAttention-3": serving.sglang_flash_attention,
    "SGLang FlashAttention-3, deterministic": partial(
        serving.sglang_flash_attention, deterministic=True
    ),
}


def cuts(planner: str, one: Batch, gpu: Gpu, sizes: Sequence[int]) -> Iterator[tuple[Cut, bool]]:
    """Yield the cut of each batch of requests like `one`, and whether it is not the cut alone.

    Raises: NotKnown where the planner's rule was not read; ValueError where the library refuses.

    >>> from labkernels.hardware import gpu
    >>> one = Batch((2048,), 32, 8, 128, page_size=16)
    >>> [other for _, other in cuts("FlashInfer fa2", one, gpu("h200"), (1, 2, 4))]
    [False, False, True]
    """
    alone = PLANNERS[planner](one, gpu)
    for n in sizes:
        cut = PLANNERS[planner](replace(one, kv_lens=one.kv_lens * n, q_lens=one.q_lens * n), gpu)
        yield cut, bool(changed(alone, cut))
