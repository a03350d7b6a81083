"""Whether a process interprets Triton or compiles it is decided by the machine, not by a plan."""

import subprocess
import sys

import pytest

pytest.importorskip("triton")
PLAN = """
import sys
import torch
torch.cuda.is_available = lambda: {has_gpu}
from labkernels.bench import budgets
from labkernels.hardware import gpu
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.operation import operations
from labkernels.measure.implementation import implementations
item = implementations("decode")["triton_decode"]
work = Decode.uniform(2, 64, q_heads=8, kv_heads=2)
(found,) = budgets.all_planned([(operations()["decode"], work, item, gpu("h200"))])
assert found.plan is not None, found.reason
print(sys.modules["triton"].knobs.runtime.interpret)
"""


@pytest.mark.parametrize("has_gpu", [False, True], ids=["no GPU", "a GPU"])
def test_a_plan_leaves_triton_a_compiler_where_there_is_a_gpu(has_gpu, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    code = PLAN.format(has_gpu=has_gpu)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(not has_gpu)]
