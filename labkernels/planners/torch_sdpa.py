"""torch's scaled_dot_product_attention: its choice, and its flash and efficient backends.

The other backends are closed.
"""

from dataclasses import replace

from labkernels.hardware import Gpu
from labkernels.planners.cut import Batch, Cut, NotKnown, even, one_length
from labkernels.planners.flash_attention import flash_attention_2

CUDNN_HEAD_DIM = 128  # of cuDNN up to 9.22


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


def backend(
    batch: Batch, gpu: Gpu, *, prefers_cudnn: bool = True, deterministic: bool = False
) -> str:
    """Return the backend that torch takes by itself: "cudnn", "flash", "efficient" or "math".

    prefers_cudnn: False with cuDNN up to 9.15.0 or TORCH_CUDNN_SDPA_DEPRIORITIZED, where cuDNN
    comes last. deterministic: torch.use_deterministic_algorithms, with which cuDNN is not taken.
    The size of the batch does not change the choice, and its lengths do: flash takes no causal mask
    with fewer queries than keys, and cuDNN no single key.
    Source: pytorch/pytorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, 001f694a.

    >>> from labkernels.hardware import gpu
    >>> [backend(Batch((512,), 32, 32, 128), gpu(key)) for key in ("a100", "h200")]
    ['flash', 'cudnn']
    """
    keys, queries = one_length(batch.kv_lens, "kv_lens"), one_length(batch.queries, "q_lens")
    aligned, major = batch.head_dim % 8 == 0, gpu.arch_number // 10
    if prefers_cudnn and not deterministic and major in (9, 10) and aligned and keys > 1:
        if batch.head_dim <= CUDNN_HEAD_DIM:
            return "cudnn"
        if batch.head_dim <= 256:
            raise NotKnown(f"head_dim = {batch.head_dim}: cuDNN's version decides")
    if major >= 8 and batch.head_dim <= 256 and not (batch.causal and queries != keys):
        return "flash"
    return "efficient" if aligned else "math"


def sdpa(batch: Batch, gpu: Gpu, **switches: bool) -> Cut:
    """Return the cut of the backend that torch takes; switches: those of `backend`.

    Raises: NotKnown where this is cuDNN or math.
    """
    taken = {"cudnn": cudnn, "flash": flash, "efficient": efficient, "math": math}
    return taken[backend(batch, gpu, **switches)](batch, gpu)
