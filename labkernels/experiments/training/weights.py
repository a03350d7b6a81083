"""The weights of a very small model, in 8 bits, that a reader can load and let write on a CPU."""

import numpy as np
import torch

from labkernels.experiments.training.losses import Run
from labkernels.experiments.training.model import Gpt, Size
from labkernels.records import store

# how it was trained, by torch's attention in fp32; a matrix has a scale for each row
SMALL = Run(Size(layers=2, q_heads=2, kv_heads=1, hidden=320, context=256), 300, 8, warmup=30)
ORIGIN = ("started_utc", "commit", "device")  # columns of a recording that the file has, too


def load() -> tuple[Gpt, dict[str, str]]:
    """Return the model whose weights are shipped, and what is known of its training.

    What is known: "steps", "held out" (its loss there in nats per byte), and the recording's
    "started_utc", "commit" and "device".
    """
    with np.load(store.path_of("weights.npz")) as file:
        kept = {name: file[name] for name in file.files}
    model = Gpt(SMALL.size).requires_grad_(requires_grad=False)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            weight.copy_(torch.from_numpy(kept[f"codes.{name}"] * kept[f"scale.{name}"]))
        else:
            weight.copy_(torch.from_numpy(kept[name]))
    known = ("steps", "held out", *ORIGIN)
    return model, {name: str(kept[name]) for name in known}
