"""Our prefill in Gluon, Triton's lower-level language, which runs only on a GPU.

The lab's own kernels also run on a CPU. The Gluon kernel cannot, so it takes part as a peer.
"""

from labkernels.kernels.call import Attention, Step
from labkernels.kernels.prefill.gluon import launch
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.measure.peers.peer import Peer, Refused, not_installed
from labkernels.policy import TENSOR_CORES


def missing() -> str | None:
    """Return why Gluon's kernels cannot run here, or None."""
    import torch

    if not torch.cuda.is_available():
        return "Gluon has no interpreter, and there is no CUDA GPU"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) != (9, 0):
        return f"wgmma needs sm_90, not sm_{major}{minor}"
    missing_triton = not_installed("triton", "triton")
    return missing_triton or not_installed("triton.experimental.gluon", "a Triton with Gluon")


def _prefill(inputs: PrefillInputs) -> Step[Attention]:
    if reason := launch.refusal(inputs):
        raise Refused(reason)
    step = launch.prepare(inputs)
    step.run()  # Gluon compiles at the first run
    return step


PEERS = (
    Peer(
        "gluon_prefill",
        "gluon",
        "The plain loop of prefill_wgmma_basic in Gluon: layouts, TMA and wgmma written out.",
        TENSOR_CORES,
        {"prefill": _prefill},
        missing,
    ),
)
