"""The shipped language model in a page: its weights, and the two decodes that it writes with."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from labkernels.cuda.launch import collected
from labkernels.experiments.training import generation, weights
from labkernels.experiments.training.model import Gpt, turns
from labkernels.records import store
from labkernels.widgets.launches import in_base64, module, planned

NAME = "writing"  # of the asset
MB = 0.8  # of the asset, which a page loads by a click
PROMPT = "    def read(self, size=-1):\n        "
# Which way of `generation` has tensor cores on, and which off.
WAYS = {"on": "tensor cores", "off": "CUDA cores"}


def data() -> dict[str, Any]:
    """Return all that write.mjs needs; the first call compiles two kernels for seconds.

    The numbers of a weight are those of the file that is shipped: codes in int8 with a scale for
    each row, and norms in fp32. turns: cosine and sine of each place and pair of channels, in fp32.
    """
    size, (model, _) = weights.SMALL.size, weights.load()
    with np.load(store.path_of("weights.npz")) as file:
        kept = {name: in_base64(file[name].tobytes()) for name in file.files if file[name].ndim}
    angles = turns(size.context, size.head_dim, model.norm.device)
    return {
        "size": asdict(size),
        "eps": float(np.finfo(np.float32).eps),  # of rms_norm
        "weights": kept | {"turns": in_base64(angles.numpy().tobytes())},
        "ways": {name: _decode(model, way) for name, way in WAYS.items()},
    }


def _decode(model: Gpt, way: str) -> dict[str, Any]:
    """Return a layer's decode of one request, as WebAssembly; all layers have the same one."""
    options, alone = generation.DECODES[way]
    with collected() as launches:
        cache = generation.Cache(model, 1, options, alone=alone)
    made = planned(launches[0])
    kernel = cache.steps[0][0].plan.kernel
    return {"kernel": kernel, "plan": made.plan, **module(made.specialization)}
