"""reference: what torch computes, float64 as the truth and 16 bits as the everyday baseline."""

from labkernels.kernels.decode.kernel import DecodeKernel, DecodeTile
from labkernels.kernels.kernel import TorchKernel


class Reference(TorchKernel, DecodeKernel):
    """It takes any group, whole."""

    name = "reference"
    idea = "torch.matmul and softmax: float64 as the truth, 16-bit eager as the everyday baseline."
    whole = DecodeTile(1, 1, 1, 1)

    def rows(self, group: int) -> int:
        """Query rows at once: the group."""
        return group


KERNEL = Reference()
