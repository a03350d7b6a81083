"""FlashInfer's wrappers on the lab's kernels: names, order and defaults as in FlashInfer 0.7.

`plan` reads the lists of pages, and `run` computes; lse is in base 2, [rows, heads], as `lse2` is.
The float workspace, PDL and non_blocking have no effect, since each call allocates what it needs.
backend "auto" lets the lab choose; "fa2" is its kernel for Ampere, and "fa3" its kernel for Hopper.
Position encodings, CUDA graphs, tensors in 8 bits but the paged decode's cache, and whatever else
only other backends have, are refused by their names.
"""

from labkernels.compat.flashinfer import mla
from labkernels.compat.flashinfer.cascade import merge_state, merge_states
from labkernels.compat.flashinfer.decode import (
    BatchDecodeWithPagedKVCacheWrapper,
    single_decode_with_kv_cache,
)
from labkernels.compat.flashinfer.prefill import (
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    single_prefill_with_kv_cache,
)

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "merge_state",
    "merge_states",
    "mla",
    "single_decode_with_kv_cache",
    "single_prefill_with_kv_cache",
]
