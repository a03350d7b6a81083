"""The lab's kernels behind calls that people know: flash-attn, FlashInfer, torch, transformers.

A script changes its import line alone: names, order, defaults, layouts and the base of each
logarithm are the original's. An argument that the kernels cannot serve is refused by its name;
one that only chooses how the original works, such as a workspace, has no effect.
"""

from labkernels.compat.sdpa import scaled_dot_product_attention

__all__ = ["scaled_dot_product_attention"]
