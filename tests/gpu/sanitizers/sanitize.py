"""Runs one kernel at small ragged shapes, for compute-sanitizer.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool initcheck \
        python tests/gpu/sanitizers/sanitize.py decode_mma

Every tensor, and the workspace of a step, is then an allocation of its own, so that a byte beside
it is out of bounds.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch

from labkernels import ops
from tests.kernels.append.cases import GROWTHS, append_case, check_appended
from tests.kernels.append.test_rotary import check_rotary
from tests.kernels.contract import SPECS
from tests.kernels.trials import CASES, trials


def append() -> None:
    for head_dim, dtype in ((64, "fp16"), (256, "bf16")):
        shape = {"head_dim": head_dim, "page_size": 3, "dtype": dtype, "layout": "padded"}
        case = append_case(*GROWTHS, **shape, device="cuda")
        ops.append(*case.arguments)
        check_appended(case)
        check_rotary(GROWTHS, torch.float32, None, False, width=32, device="cuda", **shape)


def attention(kernel: str) -> None:
    """Run the cases in which the CPU build looks for races."""
    listed = [param.values[1] for param in trials("cpu", ("cuda",))]
    for trial in (t for t in listed if (t.kernel, t.varies) == (kernel, "race")):
        case = CASES[SPECS[kernel].operation](*trial.lengths, **trial.shape, device="cuda")
        for run in trial.runs:
            step = case.step(kernel, **{**run, "checks": False})
            step.run()
            read_outputs(step)


def read_outputs(step: ops.Step) -> None:
    """Let a kernel read every output, so that one that was not written is seen."""
    for output in step.outputs():
        assert not output.double().sum().isnan(), "NaN in an output"


def main(kernel: str) -> None:
    if SPECS[kernel].operation == "append":
        append()
    else:
        attention(kernel)
    torch.cuda.synchronize()
    print(f"{kernel}: done")


if __name__ == "__main__":
    main(sys.argv[1])
