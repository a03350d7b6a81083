"""A plain kernel has the machine code that it had before its source knew any variant."""

import hashlib
import struct

import pytest

from labkernels.cuda.compiler import nvrtc
from tests.kernels.contract import SPECS

COMPILER = "13.0"  # of NVRTC: another one writes other code
# SHA-256 of the code for sm_90a at commit 882e0a85, the last one without variants: bf16, the first
# tile of 8 query heads per KV head in decode, and of 4 in a long prefill. By kernel, channels and
# layout.
HASHES = {
    ("decode_fma", 64, "paged"): "5ea34f9bf5ce08c5",
    ("decode_fma", 128, "paged"): "e956395d77e6aa07",
    ("decode_mma", 64, "paged"): "d00ca48c7f2b8932",
    ("decode_mma", 128, "paged"): "2eaac229e32e2319",
    ("decode_mma_n8", 64, "paged"): "50f5318e783f69f1",
    ("decode_mma_n8", 128, "paged"): "80f62f9a48180c51",
    ("prefill_fma", 64, "ragged"): "fde4ab8a5f7c7a8b",
    ("prefill_fma", 64, "paged"): "96c3a8d63681b163",
    ("prefill_fma", 128, "ragged"): "1aef6a438cf041dc",
    ("prefill_fma", 128, "paged"): "0156caeb913f9956",
    ("prefill_mma", 64, "ragged"): "533605ebbbe6c316",
    ("prefill_mma", 64, "paged"): "ad0bd60979e309bc",
    ("prefill_mma", 128, "ragged"): "b2fc3796357c1718",
    ("prefill_mma", 128, "paged"): "284028b4c9446127",
    ("prefill_wgmma", 64, "ragged"): "0b0537d7aa92e150",
    ("prefill_wgmma", 64, "paged"): "92f46dcad63e997c",
    ("prefill_wgmma", 128, "ragged"): "c290ab0035148caf",
    ("prefill_wgmma", 128, "paged"): "5b26827e35a284fb",
}
IN_SHORT = ("decode_mma", "prefill_mma", "prefill_wgmma")


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
@pytest.mark.parametrize(
    "of",
    [
        pytest.param(
            of, id="-".join(map(str, of)), marks=() if of[0] in IN_SHORT else pytest.mark.long
        )
        for of in HASHES
    ],
)
def test_a_plain_kernel_keeps_its_machine_code(of):
    if not nvrtc.nvrtc_version().startswith(COMPILER):
        pytest.skip(f"the hashes are of NVRTC {COMPILER}, this is {nvrtc.nvrtc_version()}")
    name, head_dim, layout = of
    spec = SPECS[name]
    group, rows = (8, 8) if spec.operation == "decode" else (4, 2**14)
    shape = spec.shape(head_dim=head_dim, group=group, rows=rows, layout=layout)
    one = spec.specializations(spec.instances(shape)[0])[0]
    made = nvrtc.compile_kernel(
        one.header,
        instance=one.instance,
        defines=one.defines,
        arch="sm_90a",
        include_dirs=one.include_dirs,
    )
    assert code_hash(made.cubin) == HASHES[of]
