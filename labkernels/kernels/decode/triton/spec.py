"""triton_decode: the same decode in Triton, tensor cores on or off by a constexpr."""

from labkernels.hardware import Gpu
from labkernels.kernels.decode.kernel import DecodeKernel, DecodeTile
from labkernels.kernels.kernel import SINCE_AMPERE, Instance, Shape
from labkernels.kernels.workload import KV_DTYPES
from labkernels.policy import CUDA_CORES, TENSOR_CORES, NumericPolicy
from labkernels.variant import UNMASKED

MIN_ROWS = 16  # the least rows that tl.dot takes
PROGRAMS_PER_SM = 2


class TritonDecode(DecodeKernel):
    """A program computes all rows of a KV head."""

    name = "triton_decode"
    language = "triton"
    idea = "One Triton source; tl.dot on tensor cores or in fp32 FMAs, chosen by a constexpr."
    parent = "reference"
    needs = SINCE_AMPERE
    policies = (TENSOR_CORES, CUDA_CORES)
    features = (*UNMASKED, "bias")
    kv_dtypes = (None, *KV_DTYPES)
    block_dtypes = ("bf16",)  # P times a scale leaves the range of fp16

    def rows(self, group: int) -> int:
        """Return the query rows of a program."""
        return max(MIN_ROWS, 1 << (group - 1).bit_length())

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[DecodeTile, ...]:
        """Return tile options; `keys` is the whole program's step, `stages` Triton's num_stages.

        Without tensor cores Triton keeps the fp32 operands of tl.dot in registers: more keys, fewer
        warps or (at 256 channels) more stages spill.
        """
        if policy == CUDA_CORES:
            one_stage, staged = DecodeTile(8, 16, 1, 1), DecodeTile(8, 16, 2, 1)
            return (one_stage, staged) if shape.width <= 128 else (one_stage,)
        keys = 64 if shape.width <= 128 else 32
        return (DecodeTile(4, keys, 3, 1), DecodeTile(4, keys // 2, 3, 1), DecodeTile(4, 16, 2, 1))

    def blocks_per_sm(self, instance: Instance, gpu: Gpu) -> int:
        """Return the blocks per SM that registers and stages allow, for the schedule."""
        return PROGRAMS_PER_SM


KERNEL = TritonDecode()
