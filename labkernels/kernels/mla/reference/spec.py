"""reference_mla: what torch computes, float64 as the truth and 16 bits as the baseline."""

from labkernels.kernels.kernel import TorchKernel
from labkernels.kernels.mla.kernel import MlaKernel
from labkernels.kernels.packed_gqa.tile import PrefillTile


class ReferenceMla(TorchKernel, MlaKernel):
    """K is the latent rows, V their first part."""

    name = "reference_mla"
    idea = "torch.matmul and softmax over latent rows, a request at a time: float64 or 16 bits."
    whole = PrefillTile(1, 1, 1, 1, 1)


KERNEL = ReferenceMla()
