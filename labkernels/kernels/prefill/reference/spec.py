"""reference_prefill: attention in torch operations; float64 is the truth, 16 bits the baseline."""

from labkernels.kernels.kernel import TorchKernel
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill.kernel import PrefillKernel


class ReferencePrefill(TorchKernel, PrefillKernel):
    """A prefill in torch operations, ragged or paged, for any group."""

    name = "reference_prefill"
    idea = "torch.matmul and softmax, one request at a time: float64, or 16-bit eager."
    whole = PrefillTile(1, 1, 1, 1, 1)
    launch = "labkernels.kernels.packed_gqa.reference"


KERNEL = ReferencePrefill()
