"""One attention under the arithmetic of five GPUs, and where their bits differ."""

from collections.abc import Mapping

import numpy as np

from labkernels import hardware
from labkernels.budget import least_time
from labkernels.kernels.operation import operations
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.numerics.arrays import as_float64

GPUS = ("a100", "rtx4090", "h200", "b200", "rtx5090")


def outputs(operation: str, workload, kernel: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Return a kernel's output by the arithmetic of each GPU's tensor cores, by architecture.

    The kernel runs as a CPU build, with the same tile and the same splits for every GPU.
    Shapes: [tokens, heads, channels] float64
    """
    of = operations()[operation]
    inputs = of.inputs(workload, ExactNormal(seed))
    found, plans = {}, set()
    for gpu in GPUS:
        step = of.step(inputs, kernel=kernel, target=gpu)
        step.run()
        plans.add((step.plan.tile, step.plan.splits))
        found[hardware.gpu(gpu).arch] = as_float64(step.outputs().out)
    if len(plans) != 1:
        raise ValueError(f"tiles and splits = {sorted(plans)}, allowed: the same for all GPUs")
    return found


def differing(outputs: Mapping[str, np.ndarray]) -> list[dict[str, str | float]]:
    """Return the percentage of elements that differ between each two architectures, as rows."""
    return [
        {"bits of": left} | {name: 100 * float(np.mean(a != b)) for name, b in outputs.items()}
        for left, a in outputs.items()
    ]


def least_times(workload) -> list[dict[str, str | float]]:
    """Return the least time of a workload on each GPU at the vendor's peaks, in milliseconds."""
    ways = {"on": True, "off": False}
    rows = []
    for gpu in map(hardware.gpu, GPUS):
        row = {
            way: 1e3 * least_time(workload, gpu, tensor_cores=on).time_s for way, on in ways.items()
        }
        rows.append({"gpu": gpu.name} | row)
    return rows
