"""The Gluon prefill compiles without a GPU; tests/gpu checks what it computes."""

from pathlib import Path

import pytest

from labkernels import hardware
from labkernels.cuda.compiler import sass, triton
from labkernels.cuda.compiler.triton import TritonVariant, compile_triton
from labkernels.kernels.prefill.gluon import launch
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.measure.peers import gluon
from labkernels.measure.peers.peer import Refused

STRIDES = tuple(f"{name}_stride_{part}" for name in "qkv" for part in ("token", "head"))
TYPES = {
    **dict.fromkeys(("q", "k", "v", "out"), "*bf16"),
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "work"), "*i32"),
    **dict.fromkeys((*STRIDES, "q_heads"), "i32"),
    **{"lse2": "*fp32", "scale_log2": "fp32"},
}
SIZES = {"ROWS": launch.ROWS, "KEYS": launch.KEYS, "STAGES": launch.STAGES}


def variant(head_dim, group):
    return TritonVariant(
        source=Path(launch.__file__).with_name("kernel.py"),
        function="prefill",
        types=TYPES,
        constants={"group": group, "D": head_dim, **SIZES, "CAUSAL": True, "num_warps": 8},
        arch="sm_90a",
        warps=launch.WARPS,
        stages=launch.STAGES,
        multiples_of_16=STRIDES,
    )


@pytest.mark.skipif(triton.available() is not None, reason=str(triton.available()))
def test_it_compiles_to_wgmma_without_a_spill():
    for made in compile_triton([variant(64, 3), variant(128, 1)]):
        mix = sass.instruction_mix(made.cubin)
        for instruction in ("HGMMA", "UTMALDG"):
            assert any(name.startswith(instruction) for name in mix)
        assert made.stack_bytes == 0
        assert 0 < made.smem_bytes <= hardware.gpu("h200").smem_per_block_max_bytes


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        (Prefill((8,), (8,), 2, 2, 64, page_size=4), "not pages"),
        (Prefill((8,), (8,), 2, 2, 192), "head_dim = 192, allowed: 64, 128"),
    ],
)
def test_it_says_what_it_does_not_take(workload, says):
    inputs = prefill_inputs(workload, Normal(0, "cpu"))
    with pytest.raises(Refused, match=says):
        gluon.PEERS[0].steps["prefill"](inputs)
