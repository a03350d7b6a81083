"""Runs one kernel at small ragged shapes, for compute-sanitizer.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool initcheck \
        python tests/gpu/sanitizers/sanitize.py decode_mma

Every tensor, and the workspace of a step, is then an allocation of its own, so that a byte beside
it is out of bounds.
"""

import sys
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch

from labkernels import ops
from tests.kernels.append.cases import GROWTHS, append_case, check_appended
from tests.kernels.append.test_append import SCALES, check_quantized
from tests.kernels.append.test_rotary import check_rotary
from tests.kernels.contract import SPECS
from tests.kernels.decode import test_eight_bits as small
from tests.kernels.decode.cases import KV_DTYPES
from tests.kernels.prefill import test_fp8 as forward
from tests.kernels.trials import CASES, trials

DEVICE = "cuda"


def append() -> None:
    for of, kind in product(SCALES, KV_DTYPES.values()):
        check_quantized(torch.bfloat16, kind, of, DEVICE)
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


def eight_bits(kernel: str) -> None:
    """Run a decode on caches of both formats with every kind of scale, or a forward of codes."""
    shape = {"head_dim": 128, "group": 4}
    for kind in SPECS[kernel].kv_dtypes if SPECS[kernel].operation == "decode" else ():
        if kind is not None:
            small.check_bits(kernel, "bf16", kind, DEVICE, page_size=3, **shape)
            for blocks in small.BLOCKS[:3]:
                small.check_blocks(kernel, "bf16", kind, blocks, DEVICE, **shape)
    for policy in SPECS[kernel].policies[:3] if SPECS[kernel].operation == "prefill_fp8" else ():
        drawn = forward.drawn((1, 30, 0, 70), (130, 200, 20, 0), device=DEVICE)
        for causal, keys in ((True, None), (False, 128)):
            forward.check_bounds(*drawn, causal=causal, policy=policy, keys_per_split=keys)


def read_outputs(step: ops.Step) -> None:
    """Let a kernel read every output, so that one that was not written is seen."""
    for output in step.outputs():
        assert not output.double().sum().isnan(), "NaN in an output"


def main(kernel: str) -> None:
    if SPECS[kernel].operation == "append":
        append()
    else:
        attention(kernel)
        eight_bits(kernel)
    torch.cuda.synchronize()
    print(f"{kernel}: done")


if __name__ == "__main__":
    main(sys.argv[1])
