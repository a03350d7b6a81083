"""Right implementations of the sixteenth held-out set."""

from collections.abc import Callable

import torch

from labkernels.measure.strangers.inputs import Call

RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {}
"""Name: a function of a call that gives the output in the dtype of q."""
