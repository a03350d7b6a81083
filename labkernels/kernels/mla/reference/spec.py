"""reference_mla: attention in torch operations; float64 is the truth, 16 bits the baseline."""

from labkernels.kernels.kernel import TorchKernel
from labkernels.kernels.mla.kernel import MlaKernel
from labkernels.kernels.packed_gqa.tile import PrefillTile


class ReferenceMla(TorchKernel, MlaKernel):
    """MLA in torch operations: K is the latent rows, V their first 512 channels."""

    name = "reference_mla"
    idea = "torch.matmul and softmax over latent rows, one request at a time: float64 or 16 bits."
    features = ()  # as the verb
    whole = PrefillTile(1, 1, 1, 1, 1)
    launch = "labkernels.kernels.packed_gqa.reference"


KERNEL = ReferenceMla()
