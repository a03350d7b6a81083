"""wgmma on the GPU reads its tiles where the descriptors say, and gives the model's bits."""

import numpy as np
import pytest

from tests.cuda import machines
from tests.cuda.host.test_warpgroup import COLUMNS, LAYOUTS, chain_of_four

pytestmark = pytest.mark.gpu


# Every layout with 64 columns, and a third of the layouts, in turn, with each other number.
CASES = [
    (layout, columns)
    for turn, columns in enumerate(COLUMNS)
    for layout in (LAYOUTS if columns == 64 else LAYOUTS[turn % 3 :: 3])
]


@pytest.mark.parametrize(("layout", "columns"), CASES)
def test_every_layout_and_width(layout, columns):
    for fmt in ("fp16", "bf16") if columns == 64 else ("bf16",):
        found, want = chain_of_four(machines.gpu_of_sm90(), fmt, *layout, columns=columns, tiles=8)
        assert np.array_equal(found, want)
