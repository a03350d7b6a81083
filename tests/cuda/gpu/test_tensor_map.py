"""What the TMA cannot do is refused before a launch, with the value and what is allowed."""

import pytest
import torch

from labkernels.cuda.gpu.tensor_map import TensorMap, tensor_map

TENSOR = torch.zeros(6, 40, 64, dtype=torch.bfloat16)


def test_a_map_says_where_the_tensor_lies_innermost_dimension_first():
    words = list(tensor_map(TENSOR, (2, 16, 64)).words)
    assert words[0] == TENSOR.data_ptr()
    assert words[2:7] == [64, 40, 6, 0, 0]
    assert words[7:12] == [2, 128, 5120, 0, 0]
    assert words[12:15] == [64 | 16 << 32, 2, 0]
    assert len(bytes(TensorMap())) == 128


@pytest.mark.parametrize(("tensor", "box", "says"), [
    (TENSOR.double(), (1, 1, 16), "dtype = torch.float64, allowed in a tensor map: "),
    (TENSOR, (16, 64), r"box = \(16, 64\) of a tensor \(6, 40, 64\), allowed: as many"),
    (TENSOR[0, 0], (64,), r"box = \(64,\) .* 2 to 5"),
    (TENSOR[:0], (1, 1, 64), r"shape = \(0, 40, 64\), allowed in a tensor map: no 0"),
    (TENSOR, (0, 1, 64), r"box = \(0, 1, 64\), allowed: 1 to 256 each"),
    (TENSOR, (1, 257, 64), r"box = \(1, 257, 64\), allowed: 1 to 256 each"),
    (TENSOR, (1, 1, 32), r"box = \(1, 1, 32\): a line of 64 bytes, allowed: 128"),
    (TENSOR.mT, (1, 64, 64), r"strides = \(2560, 1, 64\) at address .*, allowed in a tensor map"),
    (TENSOR[..., 1:], (1, 1, 64), r"strides = \(2560, 64, 1\) at address"),
    (TENSOR[..., :12].contiguous(), (1, 1, 64), r"strides = \(480, 12, 1\) at address"),
])  # fmt: skip
def test_what_the_tma_cannot_do_is_refused(tensor, box, says):
    with pytest.raises(ValueError, match=says):
        tensor_map(tensor, box)
