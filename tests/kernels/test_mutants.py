"""Seeds mistakes in the kernels: each must be found, or the tests that pass prove little."""

import pytest

from labkernels.cuda.host import HostKernelError
from tests.kernels.cases import decode_case
from tests.kernels.contract import RAGGED, run_checked
from tests.kernels.mutants import use_mutant

PIPELINE, STATE = "lab/warp_pipeline.cuh", "lab/state.cuh"
# kernel, file, what is deleted
BARRIERS = {
    "K not awaited": ("decode_mma", PIPELINE, r"(?<=void wait_k\(\) \{).*?\}"),
}


@pytest.mark.parametrize(("kernel", "file", "pattern"), BARRIERS.values(), ids=BARRIERS)
def test_a_deleted_barrier_is_named(kernel, file, pattern, tmp_path, monkeypatch):
    use_mutant(monkeypatch, tmp_path, kernel, file, pattern, "")
    with pytest.raises(HostKernelError, match="x"):
        run_checked(decode_case((5, 200)), kernel, keys_per_split=128, checks=True)
