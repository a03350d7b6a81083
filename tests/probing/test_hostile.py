"""Whatever a function does, the sheet says so in a line, and nothing is raised."""

import sys

import pytest
import torch

import labkernels
from labkernels.probing import probe
from tests.probing.attention import attention


def raises(q, k, v):
    raise RuntimeError("CUDA error: an illegal memory access\nand more")


HOSTILE = {
    "raises": raises,
    "exits": lambda q, k, v: sys.exit(3),
    "nothing": lambda q, k, v: None,
    "text": lambda q, k, v: "out",
    "shape": lambda q, k, v: q[..., :3],
    "integers": lambda q, k, v: torch.zeros(q.shape, dtype=torch.int32),
    "arguments": lambda q: q,
    "empty tuple": lambda q, k, v: (),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_cannot_judge(name):
    sheet = probe(HOSTILE[name])
    assert (sheet.verdict, sheet.exit_code) == ("cannot judge", 2)
    assert sheet.refused
    assert all("\n" not in x for x in sheet.refused)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_constant_outputs_are_defects(value):
    assert probe(lambda q, k, v: torch.full_like(q, value)).exit_code == 1


def test_an_interrupt_passes():
    def fn(q, k, v):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe(fn)


def test_lengths_that_are_refused_are_listed():
    def fn(q, k, v):
        if k.shape[2] % 2 == 0 and k.shape[2] < 64:
            raise ValueError("an odd number of keys, please")
        return attention(q, k, v)

    sheet = probe(fn, heads=(4, 2))
    assert sheet.verdict == "no defect"
    assert any("2 keys" in x and "an odd number" in x for x in sheet.refused)


def test_a_refusal_of_the_readings_is_no_verdict():
    def fn(q, k, v):
        if bool((q == 0).all()) and bool((v[0, 0] == 0).any()):
            raise ValueError("no zeros, please")
        return attention(q, k, v)

    assert probe(fn, heads=(4, 2)).verdict == "cannot judge"


@pytest.mark.parametrize(("field", "value"), [("layout", "sbhd"), ("dtype", "int8")])
def test_arguments_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        probe(attention, **{field: value})


def test_the_public_name_is_the_function():
    assert labkernels.probe is probe
    rows = probe(attention, heads=(4, 2), quick=True).rows()
    assert {"kind", "name", "value", "evidence", "calls", "seconds"} == set(rows[0])
