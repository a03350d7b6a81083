"""A warm call enters few Python functions and files, and seldom moves from file to file."""

import functools
import importlib
import sys
from pathlib import Path

import pytest

import labkernels
from labkernels import ops
from tests.kernels.append.cases import append_case
from tests.kernels.backward.cases import backward_case
from tests.kernels.decode.cases import decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case

ROOT = str(Path(labkernels.__file__).parent)


def decode():
    case = decode_case((33, 60))
    return lambda: ops.decode(case.q, case.cache)


def ragged():
    return prefill_case((17, 23), (17, 23), kv_heads=2)


def prefill(**options):
    case = ragged()
    return lambda: ops.prefill(*case.arguments, causal=True, **options)


def attention():
    case = ragged()
    tensors = [x.detach().clone().requires_grad_() for x in (case.q, case.kv.k, case.kv.v)]
    return lambda: ops.attention(*tensors, *[case.cu_seqlens_q] * 2, causal=True)


def backward():
    arguments = backward_case((17, 23), (17, 23), kv_heads=2).arguments
    return lambda: ops.backward(*arguments)


def mla():
    case = mla_case((1, 2), (33, 60))
    return lambda: ops.mla_decode(*case.arguments)


def append():
    case = append_case((1, 16), (1, 40))
    return lambda: ops.append_step(*case.arguments)


def counted(call):
    """Count labkernels' functions that a warm call enters, their files, and moves between files.

    Comprehensions do not count; a move is a change of file on a call or a return.
    """
    call()
    call()
    entered, files, moves, last = 0, set(), 0, None

    def note(frame, event, _):
        nonlocal entered, moves, last
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        is_comprehension = name.startswith("<") and name != "<lambda>"
        if event not in ("call", "return") or is_comprehension or not file.startswith(ROOT):
            return
        if event == "call":
            entered += 1
            files.add(file)
        moves += last not in (None, file)
        last = file

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered, len(files), moves


# The most functions, files and moves. The book's page on the architecture reads these numbers.
CEILINGS = {
    "decode": (38, 10, 24),
    "prefill": (46, 11, 25),
    "prefill, splits": (46, 11, 25),
    "attention": (61, 14, 31),
    "backward": (106, 13, 35),  # three launches; on a CPU each asks 12 or 14 tensors for their span
    "MLA decode": (50, 11, 32),
    "append, prepared": (29, 9, 19),
}
CALLS = {
    "decode": decode,
    "prefill": prefill,
    "prefill, splits": functools.partial(prefill, keys_per_split=1024),
    "attention": attention,
    "backward": backward,
    "MLA decode": mla,
    "append, prepared": append,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_warm_call_is_short(name):
    found = counted(CALLS[name]())
    assert all(n <= most for n, most in zip(found, CEILINGS[name], strict=True)), found
    assert all(found), "nothing was counted"


def test_the_backward_pass_makes_no_gradient_of_lse2(monkeypatch):
    given, function = [], importlib.import_module("labkernels.ops.attention")._Attention
    compute = function.backward

    def note(ctx, *gradients):
        given.append([gradient is None for gradient in gradients])
        return compute(ctx, *gradients)

    monkeypatch.setattr(function, "backward", staticmethod(note))
    attention()()[0].sum().backward()
    assert given == [[False, True]]  # zeros would be one more launch
