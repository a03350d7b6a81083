"""triton_backward: gradients in Triton, tensor cores on or off by a constexpr."""

from labkernels.kernels.backward.kernel import BackwardKernel, BackwardTile
from labkernels.kernels.kernel import SINCE_AMPERE, Shape
from labkernels.policy import CUDA_CORES, TENSOR_CORES, NumericPolicy

ON = {
    64: (BackwardTile(64, 128, 8, 2, 1, "ordered"), BackwardTile(64, 64, 4, 2, 1, "ordered")),
    128: (BackwardTile(32, 128, 8, 2, 1, "ordered"), BackwardTile(32, 64, 8, 2, 1, "ordered")),
    192: (BackwardTile(32, 32, 8, 2, 1, "ordered"),),
    256: (BackwardTile(32, 32, 8, 2, 1, "ordered"),),
}


class TritonBackward(BackwardKernel):
    """A kernel in which every sum has one order."""

    name = "triton_backward"
    language = "triton"
    idea = (
        "Two walks, one for dK and dV and one for dq: scores are computed twice, nothing is added"
        " atomically."
    )
    parent = "triton_prefill"
    needs = SINCE_AMPERE
    policies = (TENSOR_CORES, CUDA_CORES)

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[BackwardTile, ...]:
        """Return the tiles; `stages` is Triton's num_stages, blocks_per_sm what registers allow.

        A separate pass over the keys computes dq and always adds in one order. Without tensor cores
        Triton keeps the fp32 operands of tl.dot in registers, and larger tiles spill.
        """
        if policy == CUDA_CORES:
            return (BackwardTile(16, 32, 8, 1, 1, "ordered"),)
        return ON[shape.width]


KERNEL = TritonBackward()
