"""The public verdict accepts every layout, names spoiled outputs, and reads files."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import labkernels
from labkernels import cli, testing
from labkernels.audit.dumps import audit
from labkernels.numerics import rounding
from labkernels.numerics.truth import oracle

SHAPE = {"q": (2, 8, 64), "k": (2, 2, 320, 64), "v": (2, 2, 320, 64)}


@pytest.fixture(scope="module")
def dense():
    """Return bf16 q, k, v, the float64 output and lse2, and out as a right kernel stores it."""
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(SHAPE[name], generator=generator).bfloat16() for name in "qkv")
    truth, lse2 = truth_of(q, k, v)
    return SimpleNamespace(q=q, k=k, v=v, out=stored(truth), truth=truth, lse2=lse2)


def truth_of(q, k, v):
    k, v = (x.double().repeat_interleave(4, 1).numpy() for x in (k, v))
    rows = q.double().numpy()[:, :, None]
    o, lse2 = oracle.attention_float64(rows, k, v, scale=0.125)
    return o[:, :, 0], lse2[:, :, 0]


def stored(o):
    return torch.from_numpy(rounding.round_to(o, "bf16")).bfloat16()


def spoil_row(out):
    out[1, 3] = 0


def spoil_nan(out):
    out[0, 2, 5] = float("nan")


def spoil_heads(out):
    out[0, [1, 2]] = out[0, [2, 1]].clone()


def spoil_sparse(out):
    flat = out.view(-1)
    flat[3::211] = flat[3::211] * 1.2 + 0.1


@pytest.mark.parametrize(
    ("spoil", "name", "where"),
    [
        (spoil_row, "store: output never written", "request 1, head 3"),
        (spoil_heads, "index map of the output: row", "request 0, heads 1 to 2"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_spoiled_output_is_named(dense, spoil, name, where):
    out = dense.out.clone()
    spoil(out)
    found = labkernels.verdict(out, dense.q, dense.k, dense.v)
    assert found.answer == "BUG"
    assert any(match.name.startswith(name) for match in found.matches), found.summary()
    assert where in found.region.words


@pytest.mark.parametrize(
    ("spoil", "where"), [(spoil_nan, "request 0, head 2"), (spoil_sparse, "rows")]
)
def test_an_output_that_no_edit_explains_is_located(dense, spoil, where):
    out = dense.out.clone()
    spoil(out)
    found = labkernels.verdict(out, dense.q, dense.k, dense.v)
    assert (found.answer, found.matches) == ("BUG", ())
    assert where in found.region.words
    assert "labkernels probe" in found.summary()


def test_the_assertion_says_what_the_verdict_says(dense):
    out = dense.out.clone()
    spoil_row(out)
    with pytest.raises(AssertionError, match="BUG: store: output never written") as raised:
        testing.assert_attention_close(out, dense.q, dense.k, dense.v)
    assert str(raised.value) == labkernels.verdict(out, dense.q, dense.k, dense.v).summary()


def test_compare_says_which_is_wrong_and_where_they_part(dense):
    bad = dense.out.clone()
    bad[1, 3] = 0
    keys = (dense.q, dense.k, dense.v)
    found = labkernels.compare(dense.out, bad, *keys)
    assert (found.wrong, found.first) == ("b", (1, 3, 0))
    assert found.different == 1 / 16
    assert "b wrong" in found.summary()
    assert labkernels.compare(dense.out, dense.out.clone(), *keys).wrong == "neither"
    assert labkernels.compare(bad, bad, *keys).wrong == "both"


def test_inputs_that_are_not_finite_and_wrong_bases(dense):
    k = dense.k.clone()
    k[0, 0, 0, 0] = float("inf")
    assert labkernels.verdict(dense.out, dense.q, k, dense.v).answer == "INCONCLUSIVE"
    with pytest.raises(AssertionError, match="not finite"):
        testing.assert_attention_close(dense.out, dense.q, k, dense.v)
    natural = (dense.lse2 * np.log(2)).astype(np.float32)
    found = labkernels.verdict(dense.out, dense.q, dense.k, dense.v, lse2=natural)
    assert found.matches[0].name == "LSE: lse2 in base e"
    found = labkernels.verdict(dense.out.float(), dense.q, dense.k, dense.v, p_format="fp32")
    assert found.matches[0].name == "less exact: output rounded to bf16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"q": np.zeros((2, 8, 3, 64), np.float32)},
            r"out.shape = \(2, 8, 64\), allowed: .B, Hq, M, D.",
        ),
        ({"out": np.zeros((2, 4, 64), np.float32)}, "out.shape"),
        ({"out": np.zeros((2, 8, 64), int)}, "out.dtype = int64"),
        ({"v": np.zeros((2, 2, 319, 64), np.float32)}, "v.shape"),
        ({"k": np.zeros((3, 2, 320, 64), np.float32)}, "shape"),
        ({"scale": -1.0}, "scale = -1.0"),
        ({"k": None}, "k is missing"),
        ({"kv_len": np.array([1, 999])}, "kv_lens"),
        ({"cu_seqlens": np.array([0, 3, 2])}, "with cu_seqlens_k"),
        ({"p_format": "fp8"}, "p_format"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_judged_is_refused(dense, changes, message):
    given = {"out": dense.out, "q": dense.q, "k": dense.k, "v": dense.v} | changes
    with pytest.raises(ValueError, match=message):
        labkernels.verdict(**given)


def saved(path, dense, **changes):
    tensors = {n: getattr(dense, n).view(torch.uint16).numpy() for n in ("q", "k", "v", "out")}
    tensors |= changes
    np.savez(path, **{name: x for name, x in tensors.items() if x is not None})
    return str(path)


def test_audit_prints_writes_and_exits_by_the_verdict(dense, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    good = saved(tmp_path / "good.npz", dense, lse2=dense.lse2.astype(np.float32))
    assert cli.main(["audit", good, "--html", str(page)]) == 0
    assert capsys.readouterr().out.startswith("ROUNDING: ")
    text = page.read_text(encoding="utf-8")
    assert "data:image/png;base64," in text
    assert "http" not in text
    zero = np.zeros((2, 8, 64), np.uint16)
    assert cli.main(["audit", saved(tmp_path / "bad.npz", dense, out=zero)]) == 1
    nan = np.full((2, 8, 64), 0x7FC0, np.uint16)
    assert cli.main(["audit", saved(tmp_path / "nan.npz", dense, q=nan)]) == 2
    printed = capsys.readouterr().out
    assert "BUG: store: output never written" in printed
    assert "INCONCLUSIVE" in printed


def test_audit_never_writes_over_a_dump(tmp_path, capsys):
    dump, link = tmp_path / "dump.npz", tmp_path / "page.html"
    dump.write_bytes(b"tensors")
    link.symlink_to(dump)
    for page in (dump, link):
        assert cli.main(["audit", str(dump), "--html", str(page)]) == 2
        assert "allowed: a name that ends in .html" in capsys.readouterr().err
    assert dump.read_bytes() == b"tensors"


def test_other_files_are_refused(tmp_path):
    text = tmp_path / "dump.txt"
    text.write_text("q")
    with pytest.raises(ValueError, match="allowed: .*npz of NumPy.*safetensors"):
        audit(text)
