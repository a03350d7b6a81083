"""The models give what eight GPUs answered, in records that others have published.

The records are not in this repository. To run the test, clone MATLAB-tensor-core of
north-numerical-computing (Khattak & Mikaitis, arXiv 2512.07004) and name the clone:

    LABKERNELS_PUBLIC_RECORDS=path/to/MATLAB-tensor-core python -m pytest tests/numerics/emulation
"""

import os
from pathlib import Path

import numpy as np
import pytest

from labkernels.numerics.emulation import tensor_core

GPUS = {
    "sm_70": ["V100"], "sm_80": ["A100", "A2"], "sm_89": ["Ada", "L40S"],
    "sm_90": ["H100", "H200"], "sm_100": ["B200"],
}  # fmt: skip
ARCHS = {gpu: arch for arch, gpus in GPUS.items() for gpu in gpus}
FORMATS = ("fp16", "bf16", "tf32", "E4M3", "E5M2")
CASES = [(gpu, fmt, out) for gpu in ARCHS for fmt in FORMATS for out in tensor_core.OUTPUTS]


def numbers(folder: Path, word: str, base: int) -> np.ndarray:
    """Return the fp32 numbers of a file, which has a line for each product."""
    (path,) = folder.glob(f"{word}.txt")
    words = [int(text, base) for text in path.read_text().split()]
    return np.array(words, dtype=np.uint32).view(np.float32)


@pytest.mark.skipif(
    "LABKERNELS_PUBLIC_RECORDS" not in os.environ, reason="no clone of the records is named"
)
@pytest.mark.parametrize(("gpu", "fmt", "out"), CASES)
def test_the_model_gives_every_recorded_output(gpu, fmt, out):
    folder = Path(os.environ["LABKERNELS_PUBLIC_RECORDS"]) / "model_validation" / gpu / fmt
    if not (folder / f"d_{gpu}_{out}.txt").exists():
        pytest.skip(f"there is no record of {fmt} with {out} sums on this GPU")
    c, expected = numbers(folder, "c_*", 2), numbers(folder, f"d_*_{out}", 2)
    a = numbers(folder, "a_*", 16).reshape(len(c), 1, -1)
    b = numbers(folder, "b_*", 16).reshape(len(c), -1, 1)
    c = c.astype({"fp32": np.float32, "fp16": np.float16}[out]).reshape(-1, 1, 1)
    arch, of = ARCHS[gpu], fmt.lower()
    if of in tensor_core.EIGHT_BITS and arch == "sm_90" and out == "fp32":
        got = tensor_core.matmul(a, b, arch=arch, fmt=of)  # by wgmma, which began at zero
    elif of in tensor_core.EIGHT_BITS and arch in ("sm_90", "sm_100"):
        got = tensor_core.widened_matmul(a, b, c, fmt=of, out=out)
    else:
        got = tensor_core.matmul(a, b, c, arch=arch, fmt=of, out=out)
    assert len(c) >= 5000
    assert np.array_equal(got.reshape(-1).astype(np.float32), expected)
