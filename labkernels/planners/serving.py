"""What vLLM and SGLang ask of FlashInfer and FlashAttention-3, with and without their promise.

Their modes for the same bits whatever the batch: VLLM_BATCH_INVARIANT=1 of vLLM, and SGLang's
--enable-deterministic-inference.
"""

from dataclasses import replace

from labkernels.hardware import Gpu
from labkernels.planners import flashinfer
from labkernels.planners.cut import Batch, Cut, NotKnown
from labkernels.planners.flash_attention import flash_attention_3

SGLANG_DECODE_SPLIT, SGLANG_PREFILL_SPLIT = 2048, 4096  # keys, as its pages hold one key
SGLANG_GROUP = 4  # query heads per KV head from which its decode runs on tensor cores


def vllm_flashinfer(batch: Batch, gpu: Gpu, *, batch_invariant: bool = False) -> Cut:
    """Return the cut of vLLM's FlashInfer backend, which decodes and prefills by fa2's rules.

    With batch_invariant it asks for splits of 2048 pages as well, but disabling splits prevails.
    Source: vllm-project/vllm, vllm/v1/attention/backends/flashinfer.py, as stored in November 2026.
    """
    return flashinfer.fa2(batch, gpu, disable_split_kv=batch_invariant)


def vllm_flash_attention(
    batch: Batch,
    gpu: Gpu,
    *,
    batch_invariant: bool = False,
    allocated: int | None = None,
    graph_splits: int = 0,
) -> Cut:
    """Return the cut of vLLM's FlashAttention-3 backend.

    graph_splits: the most splits of a decode in a CUDA graph, from its configuration; 0 for the
    heuristic. With batch_invariant there is one split, but the batch's longest query sets the tile.
    Source: vllm-project/vllm, vllm/v1/attention/backends/flash_attn.py, 5704f34f.
    """
    splits = 1 if batch_invariant else graph_splits
    fork = "vllm-project"
    return flash_attention_3(batch, gpu, num_splits=splits, allocated=allocated, fork=fork)


def sglang_flashinfer(
    batch: Batch, gpu: Gpu, *, deterministic: bool = False, cuda_graph: bool = False
) -> Cut:
    """Return the cut of SGLang's decode by FlashInfer, whose pages hold one key, or of its prefill.

    Raises: NotKnown for a prefill that is not deterministic, which merges two kernels' outputs: of
    the new tokens, and of the cached ones.
    Source: sgl-project/sglang, python/sglang/srt/layers/attention/flashinfer_backend.py, 0005834c.
    """
    batch = replace(batch, page_size=1)
    if max(batch.queries) > 1:
        if not deterministic:
            raise NotKnown(
                "SGLang's prefill merges new and cached keys; its parts were not emulated"
            )
        return flashinfer.fa2(batch, gpu, fixed_split_size=SGLANG_PREFILL_SPLIT)
    if not deterministic and batch.group < SGLANG_GROUP:
        return flashinfer.decode_cuda_cores(batch, gpu, cuda_graph=cuda_graph)
    if deterministic and cuda_graph:
        return flashinfer.fa2(batch, gpu, disable_split_kv=True, cuda_graph=True)
    fixed = SGLANG_DECODE_SPLIT if deterministic else None
    return flashinfer.fa2(batch, gpu, fixed_split_size=fixed, cuda_graph=cuda_graph)


def sglang_flash_attention(
    batch: Batch, gpu: Gpu, *, deterministic: bool = False, allocated: int | None = None
) -> Cut:
    """Return the cut of SGLang's FlashAttention-3 backend, which has one split if deterministic.

    Source: sgl-project/sglang, python/sglang/srt/layers/attention/flashattention_backend.py, as
    stored in November 2026; sgl-project/sgl-flash-attn, hopper/, 2580b5a4.
    """
    return flash_attention_3(batch, gpu, num_splits=int(deterministic), allocated=allocated)
