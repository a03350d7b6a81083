"""A plain kernel has the machine code that it had before its source knew any variant."""

import hashlib
import struct

import pytest

from labkernels.cuda.compiler import nvrtc
from tests.kernels.contract import SPECS

COMPILER = "13.0"  # of NVRTC: another one writes other code
# SHA-256 of the code for sm_90a of 128 channels at the last commits without variants, 882e0a85 and
# 621790dd, and of append without rotations and of caches in e4m3 without scales of blocks of keys,
# bda6bf38: bf16, the first tile of 8 query heads per KV head in decode, and of 4 in long calls. Of
# decode_mma_n8 from e4m3 another tile is the first since; the former one has the former code.
HASHES = {
    ("append", "paged"): "60cb65de8682b2be",
    ("decode_fma", "paged"): "3729f2a6c5e94adc",
    ("decode_mma", "paged"): "2eaac229e32e2319",
    ("decode_mma_n8", "paged"): "80f62f9a48180c51",
    ("prefill_fma", "ragged"): "1aef6a438cf041dc",
    ("prefill_mma", "ragged"): "b2fc3796357c1718",
    ("prefill_mma", "paged"): "284028b4c9446127",
    ("prefill_wgmma", "ragged"): "c290ab0035148caf",
    ("prefill_wgmma", "paged"): "5b26827e35a284fb",
    ("backward_mma", "ragged"): "284379a2eb8b202f",
    ("backward_wgmma", "ragged"): "136c8cef48615db9",
    ("append", "paged", "e4m3"): "11c0de6b46f68f2c",
    ("decode_fma", "paged", "e4m3"): "808de730c376c908",
    ("decode_mma", "paged", "e4m3"): "7f2d9e3cc180343d",
    ("decode_mma_n8", "paged", "e4m3"): "8cec8a1f9122674e",
}


def code_hash(cubin):
    """Return the start of the SHA-256 of an ELF file's one section of code."""
    (first,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, first + i * size) for i in range(count)]
    name_of = sections[names][4]
    (code,) = (
        cubin[begin : begin + length]
        for name, _, _, _, begin, length in sections
        if cubin[name_of + name :].startswith(b".text.")
    )
    return hashlib.sha256(code).hexdigest()[:16]


@pytest.mark.skipif(nvrtc.available() is not None, reason="no NVRTC")
@pytest.mark.one_in(3)
@pytest.mark.parametrize("of", HASHES, ids="-".join)
def test_a_plain_kernel_keeps_its_machine_code(of):
    if not nvrtc.nvrtc_version().startswith(COMPILER):
        pytest.skip(f"the hashes are of NVRTC {COMPILER}, this is {nvrtc.nvrtc_version()}")
    spec, layout = SPECS[of[0]], of[1]
    group, rows = (8, 8) if spec.operation == "decode" else (4, 2**14)
    how = {} if spec.operation == "backward" else {"layout": layout}
    shape = spec.shape(head_dim=128, group=group, rows=rows, kv_dtype=[*of, None][2], **how)
    one = spec.specializations(spec.instances(shape)[0])[0]
    how = {"instance": one.instance, "defines": one.defines, "include_dirs": one.include_dirs}
    made = nvrtc.compile_kernel(one.header, arch="sm_90a", **how)
    assert code_hash(made.cubin) == HASHES[of]
