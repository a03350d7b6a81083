"""torch's scaled_dot_product_attention: its flash and efficient backends; the others are closed."""

from dataclasses import replace

from labkernels.hardware import Gpu
from labkernels.planners.cut import Batch, Cut, NotKnown, even, one_length
from labkernels.planners.flash_attention import flash_attention_2


def flash(batch: Batch, gpu: Gpu) -> Cut:
    """Return the cut of the flash backend, which is FlashAttention-2's dense call.

    Raises: NotKnown if lengths differ.
    Source: pytorch/pytorch, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp
    (mha_fwd), 03b7c19d; its kernels are those of Dao-AILab/flash-attention.
    """
    one_length(batch.kv_lens, "kv_lens")
    return replace(flash_attention_2(batch, gpu), kernel="torch flash")


def efficient(batch: Batch, gpu: Gpu) -> Cut:
    """Return the cut of the efficient backend: no splits, and a tile by head_dim alone.

    Raises: NotKnown outside sm_80 to sm_90, and if lengths differ.
    Source: pytorch/pytorch, aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernels/
    cutlassF.h, 5ef5abf4.
    """
    if not 80 <= gpu.arch_number < 100:
        raise NotKnown(f"torch's efficient backend on {gpu.arch}")
    one_length(batch.kv_lens, "kv_lens")
    sizes = (64, 64) if batch.head_dim <= 64 else (64 if batch.head_dim <= 128 else 32, 128)
    splits = tuple(even(n) for n in batch.kv_lens)
    return Cut("torch efficient", *sizes, splits, order="ascending")


def cudnn(batch: Batch, gpu: Gpu) -> Cut:
    """Raise NotKnown: cuDNN chooses engine, tile and splits, and its source is closed."""
    raise NotKnown("cuDNN chooses its engine, tile and splits in a library whose source is closed")


def math(batch: Batch, gpu: Gpu) -> Cut:
    """Raise NotKnown: the products are cuBLAS's, which chooses kernels by the whole batch."""
    raise NotKnown("cuBLAS chooses the kernels of both products by the shape of the whole batch")
