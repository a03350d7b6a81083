"""A process that was spawned, not forked, gives the same bits; no step can be sent to it."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from labkernels import ops
from tests.kernels.decode.cases import bits, decode_case


def outputs():
    case = decode_case((7, 40))
    step = ops.decode_step(case.q, case.cache, keys_per_split=16)
    step.run()
    step.run()
    return [bits(x).tolist() for x in step.outputs()]


def test_a_spawned_process_gives_the_same_bits():
    here, case = outputs(), decode_case((7, 40))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as spawned:
        assert spawned.submit(outputs).result(timeout=300) == here
        sent = spawned.submit(type, ops.decode_step(case.q, case.cache))
        with pytest.raises(TypeError, match="a Step cannot be pickled: it holds addresses"):
            sent.result(timeout=300)
