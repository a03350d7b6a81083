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
from labkernels.kernels.registry import discover
from tests.kernels.append.cases import GROWTHS, append_case, check_appended
from tests.kernels.backward.cases import backward_case
from tests.kernels.decode.cases import decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case

KV_LENS = (0, 1, 17, 150)
KEYS_PER_SPLIT = (10_000, 64)  # unsplit, split


def decode(kernel: str) -> None:
    for head_dim, dtype in ((64, "fp16"), (128, "bf16"), (256, "fp16")):
        for group in (3, 16):
            case = decode_case(
                KV_LENS,
                group=group,
                head_dim=head_dim,
                page_size=3,
                dtype=dtype,
                layout="padded",
                device="cuda",
            )
            for keys_per_split in KEYS_PER_SPLIT:
                read_outputs(case.run(kernel, keys_per_split=keys_per_split))


def prefill(kernel: str) -> None:
    for head_dim, dtype in ((64, "fp16"), (192, "bf16"), (256, "fp16")):
        for page_size in (None, 3) if "paged" in discover()[kernel].layouts else (None,):
            case = prefill_case(
                (0, 1, 17, 70, 20),
                (5, 1, 0, 150, 7),
                group=3,
                head_dim=head_dim,
                page_size=page_size,
                dtype=dtype,
                layout="padded",
                device="cuda",
            )
            for keys_per_split in KEYS_PER_SPLIT:
                read_outputs(case.run(kernel, keys_per_split=keys_per_split))


def mla(kernel: str) -> None:
    for heads, dtype in ((9, "bf16"), (40, "fp16")):
        case = mla_case(
            (1, 0, 2, 4, 3),
            (0, 5, 17, 150, 70),
            heads=heads,
            page_size=3,
            dtype=dtype,
            layout="padded",
            device="cuda",
        )
        for keys_per_split in KEYS_PER_SPLIT:
            read_outputs(case.run(kernel, keys_per_split=keys_per_split))


def read_outputs(result: ops.Step) -> None:
    """Let a kernel read every output, so that one that was not written is seen."""
    assert torch.isfinite(result.out.double().sum()), "NaN in out"
    assert not result.lse2.double().sum().isnan(), "NaN in lse2"


def append(kernel: str) -> None:
    del kernel  # the only one
    for head_dim, dtype in ((64, "fp16"), (256, "bf16")):
        case = append_case(
            *GROWTHS, head_dim=head_dim, page_size=3, dtype=dtype, layout="padded", device="cuda"
        )
        ops.append(*case.arguments)
        check_appended(case)


def backward(kernel: str) -> None:
    for head_dim, dtype in ((64, "fp16"), (128, "bf16"), (256, "fp16")):
        case = backward_case(
            (0, 1, 17, 70, 20),
            (5, 1, 0, 150, 7),
            group=3,
            head_dim=head_dim,
            dtype=dtype,
            layout="padded",
            device="cuda",
        )
        for deterministic in (False, True):
            step = case.step(kernel, deterministic=deterministic)
            step.run()
            for gradient in (step.dq, step.dk, step.dv):
                assert torch.isfinite(gradient.double().sum()), "NaN in a gradient"


RUNS = {
    "decode": decode,
    "prefill": prefill,
    "backward": backward,
    "mla": mla,
    "append": append,
}


def main(kernel: str) -> None:
    RUNS[discover()[kernel].operation](kernel)
    torch.cuda.synchronize()
    print(f"{kernel}: done")


if __name__ == "__main__":
    main(sys.argv[1])
