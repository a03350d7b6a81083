"""Whatever a file holds, audit and compare answer in one line, and exit code 1 says BUG alone."""

import json
import math
import struct
import zipfile

import numpy as np
import pytest
import torch

from labkernels import cli
from labkernels.cli import audit as command
from tests.measure.strangers import inputs, right

CALL = inputs.call("normal", inputs.Shape(2, 4, 2, 8, 8, 32), "bf16", 1)
GIVEN = {"q": CALL.q, "k": CALL.k, "v": CALL.v, "out": right.RIGHT["flash, blocks of 64"](CALL)}


def refused(capsys, path, *more):
    """Return the line on stderr that refuses a file."""
    code = cli.main(["audit", str(path), *more])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    return err


def header(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


HEADERS = {
    "a list": b"[1, 2]",
    "an entry of a number": json.dumps({"q": 3}).encode(),
    "no offsets": json.dumps({"q": {"dtype": "F32", "shape": [1]}}).encode(),
    "offsets of text": json.dumps(
        {"q": {"dtype": "F32", "shape": [1], "data_offsets": ["a", "b"]}}
    ).encode(),
    "three offsets": json.dumps(
        {"q": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}
    ).encode(),
    "a shape of text": json.dumps(
        {"q": {"dtype": "F32", "shape": "ab", "data_offsets": [0, 4]}}
    ).encode(),
    "a name twice": b'{"q": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "q": {}}',
    "a deep nest": b"[" * 100_000,
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_none(name, tmp_path, capsys):
    (tmp_path / "x.safetensors").write_bytes(header(HEADERS[name]) + bytes(8))
    assert "x.safetensors: " in refused(capsys, tmp_path / "x.safetensors")


ENDS = torch.arange(3) * 8
PACKED = {name: x.transpose(1, 2).flatten(0, 1) for name, x in GIVEN.items()}
POOLS = {name: x.transpose(1, 2).reshape(4, 4, 2, 32) for name, x in GIVEN.items() if name in "kv"}
PAGES = torch.arange(4).view(2, 2)
POOLS |= {"page_table": PAGES, "kv_len": ENDS.diff()}
LISTS = {"k": POOLS["k"], "v": POOLS["v"], "kv_indptr": torch.tensor([0, 2, 4])}
LISTS |= {"kv_indices": torch.arange(4), "kv_last_page_len": torch.tensor([4, 4])}
DUMPS = {
    "pages without v": ({"k": CALL.k, "page_table": torch.zeros(2, 1).int()}, "v is missing"),
    "pages without k": ({"k": None, "v": CALL.v, "page_table": torch.zeros(2, 1)}, "is missing"),
    "no heads": ({name: x[:, :0] for name, x in GIVEN.items()}, "allowed"),
    "no KV heads": ({name: GIVEN[name][:, :0] for name in "kv"}, "allowed: no 0; kv_len says that"),
    "no rows": ({name: x[:0] for name, x in GIVEN.items()}, "allowed: one row or more"),
    "no queries": ({name: GIVEN[name][:, :, :0] for name in ("q", "out")}, "one row or more"),
    "text": ({"k": "nothing"}, "k is a str, allowed: a tensor"),
    "a number": ({"k": 3.0}, "k is a float, allowed: a tensor"),
    "integers": ({"k": CALL.k.long()}, "k.dtype = int64, allowed"),
    "complex": ({"q": CALL.q.to(torch.complex64)}, "q.dtype = complex64"),
    "a tensor of no dimensions": ({"k": torch.tensor(1.0)}, "k"),
    "page numbers of floats": (
        {"k": CALL.k, "v": CALL.v, "page_table": torch.rand(2, 1), "kv_len": torch.ones(2).int()},
        "page_table.dtype",
    ),
    "a window of True": ({"window_left": True}, "window_left = True, allowed: one number"),
    "heads of NaN": ({"num_heads": 1, "num_q_heads": math.nan}, "q_heads = nan, allowed: a whole"),
    "lse with an imaginary part": ({"lse": CALL.q[..., 0] * 1j}, "lse.dtype = complex"),
    "scale of text": ({"scale": "small"}, "scale = 'small', allowed: one number"),
    "descales of text": ({"k_scale": "small"}, "k_scale"),
    "window of text": ({"window_size": "small"}, "window_size = small, allowed"),
    "a sparse tensor": ({"q": CALL.q.to_sparse()}, "tensor q is torch.sparse_coo on cpu"),
    "a tensor without values": ({"k": CALL.k.to("meta")}, "on meta, allowed: values"),
    "a page beyond the pool": (POOLS | {"page_table": PAGES + 9}, "page_table[0] = [ 9 10]"),
    "a page below the pool": (POOLS | {"page_table": PAGES - 9}, "allowed: 0 to 3"),
    "a table of one dimension": (POOLS | {"page_table": PAGES[0]}, "page_table.ndim = 1"),
    "a length beyond the table": (POOLS | {"kv_len": ENDS[1:] * 9}, "kv_lens[0] = 72, allowed"),
    "falling ends": (PACKED | {"cu_seqlens": ENDS.flip(0)}, "allowed: rising from 0 to 16"),
    "ends of one number": (
        PACKED | {"cu_seqlens": ENDS[2]},
        "cu_seqlens.shape = (), allowed: [B + 1]",
    ),
    "falling ends of pages": (LISTS | {"kv_indptr": ENDS.flip(0)}, "kv_indptr = [16, 8, 0]"),
    "a last page of no keys": (LISTS | {"kv_last_page_len": ENDS[:2]}, "2 numbers from 1 to 4"),
    "a mask of few keys": (
        {"mask": torch.ones(3).bool()},
        "mask.shape = (3,), allowed: what broadcasts",
    ),
    "a mask of many keys": ({"mask": torch.ones(9, 9).bool()}, "mask.shape = (9, 9), allowed"),
    "a scale of 0": ({"scale": 0.0}, "scale = 0.0, allowed: 5.42e-20 to 1.84e+19"),
    "a scale beyond fp32": ({"scale": 1e38}, "scale = 1e+38, allowed"),
    "a descale of 0": ({"k_scale": 0.0}, "k_scale = 0.0, allowed: finite numbers, not 0"),
    "a window of NaN": ({"window_left": math.nan}, "window_left = nan, allowed: a whole number"),
    "a soft cap below 0": ({"soft_cap": -3.0}, "soft_cap = -3.0, allowed: a positive number"),
    "sinks of few heads": ({"sinks": torch.ones(3)}, "sinks.shape = (3,), allowed: (4,)"),
    "lse of few rows": ({"lse": torch.ones(3)}, "lse2.shape = (3,), allowed"),
    "gradients alone": ({"dq": CALL.q}, "dout is missing, allowed with dq"),
    "packed of one dimension": ({"q": None, "qkv": CALL.q.flatten()}, "qkv.shape = (2048,)"),
}


@pytest.mark.parametrize("name", DUMPS)
def test_a_dump_that_cannot_be_judged(name, tmp_path, capsys):
    given, words = DUMPS[name]
    found = {n: x for n, x in (GIVEN | given).items() if x is not None}
    if name == "pages without v":
        del found["v"]
    torch.save(found, tmp_path / "x.pt")
    assert words in refused(capsys, tmp_path / "x.pt")


NOISE = torch.full((2, 2, 5, 32), math.nan).bfloat16()
NO_KEYS = torch.zeros(8, 8).masked_fill(torch.arange(8)[:, None] == 3, -math.inf)
RIGHT = {
    "keys beyond the length": {
        "k": torch.cat([CALL.k, NOISE], 2),
        "v": torch.cat([CALL.v, NOISE], 2),
        "kv_len": torch.tensor([8, 8]),
    },
    "pages that nobody owns": POOLS
    | {name: torch.cat([POOLS[name], NOISE[:, :, :4].transpose(1, 2)]) for name in "kv"}
    | {"page_table": torch.cat([PAGES, torch.full((2, 3), -1)], 1)},
    "no keys at all": {"kv_len": torch.tensor([0, 0]), "out": 0 * GIVEN["out"]},
    "formats of three kinds": {"k": CALL.k.float(), "v": CALL.v.double()},
    "no window, cap, bias": {"window_size": (-1, -1), "soft_cap": 0.0, "bias": torch.zeros(1, 8)},
    "a row without keys": {
        "mask": NO_KEYS,
        "out": GIVEN["out"].where(NO_KEYS[:, :1] == 0, torch.tensor(0.0).bfloat16()),
    },
    "views and gradients": {"q": CALL.q.clone().requires_grad_(), "k": torch._neg_view(-CALL.k)},
    "bits that torch put off": {n: torch._neg_view(-x.float()) for n, x in GIVEN.items()}
    | {"out": torch._neg_view(-right.exact(CALL)[0].float())},
    "names of all kinds": {"mask_token": 7, "window_name": "x", "k_norm": [1, 2], "q_len": 3},
}


@pytest.mark.parametrize("name", RIGHT)
def test_an_odd_dump_of_a_right_output_is_rounding(name, tmp_path):
    found = GIVEN | RIGHT[name]
    torch.save(found, tmp_path / "x.pt")
    assert cli.main(["audit", str(tmp_path / "x.pt")]) == 0


def test_two_members_of_one_name(tmp_path, capsys):
    arrays = {name: x.float().numpy() for name, x in GIVEN.items()}
    np.savez(tmp_path / "x.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        member = archive.read("out.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive, pytest.warns(match="Duplicate"):
        archive.writestr("out.npy", member)
    assert "two of its members have one name" in refused(capsys, tmp_path / "x.npz")


def test_a_pickle_of_code_is_refused_without_advice_to_run_it(tmp_path, capsys):
    torch.save(GIVEN | {"code": cli.main}, tmp_path / "x.pt")
    line = refused(capsys, tmp_path / "x.pt")
    assert "might run code; allowed: a dict of these" in line
    assert "weights_only" not in line


def test_an_error_that_nobody_thought_of_is_one_line_too(tmp_path, capsys, monkeypatch):
    torch.save(GIVEN, tmp_path / "x.pt")

    def fail(*_, **__):
        raise IndexError("index 3 is out of bounds")

    monkeypatch.setattr("labkernels.audit.dumps.verdict", fail)
    line = refused(capsys, tmp_path / "x.pt")
    assert "x.pt: cannot be judged: IndexError: index 3 is out of bounds" in line
    assert cli.main(["compare", str(tmp_path / "x.pt"), str(tmp_path / "x.pt")]) == 2


def test_rows_without_keys_beside_a_bug(tmp_path):
    wrong = GIVEN["out"].clone()
    wrong[1] *= 1.5
    torch.save(GIVEN | {"out": wrong, "kv_len": torch.tensor([0, 8])}, tmp_path / "x.pt")
    assert cli.main(["audit", str(tmp_path / "x.pt"), "--quick"]) == 1


def test_an_answer_that_takes_long_is_announced(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("labkernels.cli.options.QUIET_S", 0.0)
    torch.save(GIVEN, tmp_path / "x.pt")
    assert command.CODES["BUG"] == 1
    assert cli.main(["audit", str(tmp_path / "x.pt")]) == 0
    assert "x.pt against float64" in capsys.readouterr().err
