"""reference: attention in torch operations; float64 is the truth, 16 bits the everyday baseline."""

from labkernels.kernels.decode.kernel import DecodeKernel, DecodeTile
from labkernels.kernels.kernel import TorchKernel
from labkernels.kernels.workload import KV_DTYPES


class Reference(TorchKernel, DecodeKernel):
    """A decode in torch operations, for any group."""

    name = "reference"
    idea = "torch.matmul and softmax: float64 as the truth, 16-bit eager as the everyday baseline."
    kv_dtypes = (None, *KV_DTYPES)
    whole = DecodeTile(1, 1, 1, 1)

    def rows(self, group: int) -> int:
        """Return the query rows per block: the group."""
        return group


KERNEL = Reference()
