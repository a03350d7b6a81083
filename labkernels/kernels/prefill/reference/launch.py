"""The prefill in plain torch."""

from labkernels.kernels.call import Attention, Step
from labkernels.kernels.packed_gqa import reference
from labkernels.kernels.packed_gqa.call import PackedCall


def prepare(call: PackedCall) -> Step[Attention]:
    """Prepare the torch operations of a prefill. Requested splits are ignored."""
    return reference.prepare(call, lambda tokens: call.q[tokens])
