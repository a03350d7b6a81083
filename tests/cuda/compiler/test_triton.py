"""Triton kernels compile ahead of time, also from a process that interprets them."""

import dataclasses
from pathlib import Path

import pytest

from labkernels.cuda.compiler import sass, triton
from labkernels.cuda.compiler.triton import TritonVariant, compile_triton

SOURCE = Path(__file__).parents[1] / "kernels_for_tests" / "triton_product.py"
VARIANT = TritonVariant(
    source=SOURCE,
    function="product",
    types={"a": "*fp16", "b": "*fp16", "out": "*fp32", "rows": "i32"},
    constants={"N": 16, "TENSOR_CORES": True},
    arch="sm_80",
    warps=4,
    stages=2,
)


@pytest.fixture(autouse=True)
def _compiler(monkeypatch, tmp_path):
    reason = triton.available()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("LABKERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def test_tensor_cores_on_and_off_are_in_the_machine_code():
    off = {**VARIANT.constants, "TENSOR_CORES": False}
    variants = [
        dataclasses.replace(VARIANT, arch=arch, constants=constants)
        for arch in ("sm_80", "sm_90a")
        for constants in (VARIANT.constants, off)
    ]
    compiled = compile_triton(variants)
    mixes = [sass.instruction_mix(kernel.cubin) for kernel in compiled]
    assert [any("MMA" in name for name in mix) for mix in mixes] == [True, False, True, False]
    assert all(mix.get("FFMA", 0) > 0 for mix in mixes[1::2])
    assert {kernel.symbol for kernel in compiled} == {"product"}
    assert all(8 <= kernel.registers <= 255 for kernel in compiled)
    assert all(kernel.stack_bytes == 0 for kernel in compiled)
    assert all(kernel.smem_bytes > 0 for kernel in compiled)


def test_error_is_tritons():
    with pytest.raises(RuntimeError, match="no_such_kernel"):
        compile_triton([dataclasses.replace(VARIANT, function="no_such_kernel")])
