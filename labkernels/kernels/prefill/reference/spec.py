"""reference_prefill: what torch computes, float64 as the truth and 16 bits as the baseline."""

from labkernels.kernels.kernel import TorchKernel
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill.kernel import PrefillKernel


class ReferencePrefill(TorchKernel, PrefillKernel):
    """Ragged or paged, of any group."""

    name = "reference_prefill"
    idea = "torch.matmul and softmax, one request at a time: float64, or 16-bit eager."
    whole = PrefillTile(1, 1, 1, 1, 1)


KERNEL = ReferencePrefill()
