"""Importers read the files of other tools by their documented formats, and refuse hostile files."""

import json
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from labkernels import cli
from labkernels.audit import importers, names
from labkernels.audit.dumps import audit, judge
from labkernels.units import LOG2_E
from tests.measure.strangers import inputs, right

FLASH = right.RIGHT["flash, blocks of 64"]
DECODE = inputs.Shape(2, 4, 2, 1, 48, 32)
PREFILL = inputs.Shape(2, 4, 2, 24, 24, 32, causal=True)


@pytest.fixture(scope="module")
def call():
    return inputs.call("v of mean 1", PREFILL, "bf16", 1)


@pytest.fixture(scope="module")
def dense(call):
    lse = right.exact(call)[1]
    return {"q": call.q, "k": call.k, "v": call.v, "out": FLASH(call), "lse": lse, "causal": True}


def paged(call, size=16):
    """Return the keys and values of a decode as shuffled pages, with FlashInfer's three arrays."""
    batch, heads, length, dim = call.k.shape
    n = batch * length // size
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    pools = []
    for x in (call.k, call.v):
        pages = x.transpose(1, 2).reshape(n, size, heads, dim)
        pools.append(torch.empty_like(pages).index_copy_(0, order, pages))
    lists = {"kv_indptr": torch.arange(batch + 1) * (length // size), "kv_indices": order}
    return pools, lists | {"kv_last_page_len": torch.full((batch,), size)}


def saved(tmp_path, tensors, name="dump.pt"):
    torch.save(tensors, tmp_path / name)
    return tmp_path / name


def test_names_of_others_layouts_and_a_natural_lse(dense, tmp_path, monkeypatch):
    """As in flash-attention, tensors are [B, S, H, D] and softmax_lse is [B, H, S] in base e."""
    monkeypatch.setattr("labkernels.numerics.verdict.diagnosis.search.of_output", None)
    other = {n: dense[n].transpose(1, 2).contiguous() for n in ("q", "k", "v", "out")}
    renamed = {"query": other["q"], "key_states": other["k"], "value": other["v"]}
    renamed |= {"attn_output": other["out"], "softmax_lse": dense["lse"], "causal": 1, "x": "y"}
    found = audit(saved(tmp_path, renamed))
    assert found.answer == "ROUNDING", found.summary()
    assert found.note.startswith("tensors taken as [B, S, H, D]; lse taken as a natural logarithm")
    mapped = {"a": other["q"], "b": renamed} | {"k": other["k"], "v": other["v"]}
    path = saved(tmp_path, mapped | {"out": other["out"], "causal": 1}, "mapped.pt")
    assert audit(path, names={"q": "a"}).answer == "ROUNDING"
    assert cli.main(["audit", str(path), "--map", "q=a"]) == 0
    assert cli.main(["audit", str(path), "--map", "nonsense"]) == 2


def test_a_wrong_row_is_found_in_the_layout_that_the_other_rows_fit(dense):
    """The shape also fits 16 heads of 4 tokens, but in that reading all rows are wrong."""
    wrong = {name: dense[name].transpose(1, 2)[:, :16].contiguous() for name in ("q", "k", "v")}
    q, k, v = (wrong[name].transpose(1, 2) for name in ("q", "k", "v"))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    out[0, 1, 5] *= 1.05
    found = judge(wrong | {"out": out.transpose(1, 2)})
    assert found.note == "tensors taken as [B, S, H, D]"
    assert "head 1" in found.summary()
    assert "query 5" in found.summary()


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
@pytest.mark.parametrize("tokens", [None, 24])
def test_a_call_of_one_request_that_flashinfer_dumped(tokens, kv_layout, tmp_path):
    """single_decode_with_kv_cache has no tokens and no batch; single_prefill has no batch."""
    call = inputs.call("normal", PREFILL if tokens else DECODE, "bf16", 2)
    q, out, k, v = (x[0].transpose(0, 1) for x in (call.q, FLASH(call), call.k, call.v))
    if kv_layout == "HND":
        k, v = call.k[0], call.v[0]
    given = {"arg_0": q, "arg_1": k, "arg_2": v}
    if not tokens:
        given["arg_0"], out = q[0], out[0]
    signature = "(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_layout: str = 'NHD')"
    numbers = {"arg_3": kv_layout, "kwarg_causal": bool(tokens), "kwarg_sm_scale": call.scale}
    about = {"function_signature": signature, "input_metadata": numbers}
    _write(tmp_path / "1_call", about, inputs=given, outputs={"result": out})
    found = audit(tmp_path)
    assert found.answer == "ROUNDING", found.summary()
    wrong = {"result": out.roll(1, -1)}
    _write(tmp_path / "2_call", about, inputs=given, outputs=wrong)
    assert audit(tmp_path / "2_call").answer == "BUG"
    with pytest.raises(ValueError, match="2 calls, allowed: one, such as 2_call"):
        audit(tmp_path)


def test_names_that_nobody_knows_are_told_with_the_option_that_says_them(dense, tmp_path):
    strange = {f"my_{name}": dense[name] for name in ("q", "k", "v", "out")}
    path = saved(tmp_path, strange)
    with pytest.raises(ValueError, match=r"none of a known name; not known: my_k.*--map q=NAME"):
        audit(path)


def _write(folder, about, **tensors):
    folder.mkdir()
    (folder / "metadata.jsonl").write_text(json.dumps(about) + "\n")
    for kind, values in tensors.items():
        torch.save({name: x.contiguous() for name, x in values.items()}, folder / f"{kind}.pt")


def test_fp8_keys_with_scales():
    call = inputs.call("normal", DECODE, "bf16", 4)
    k8, v8 = (x.to(torch.float8_e4m3fn) for x in (call.k, call.v))
    narrow = inputs.Call(call.q, k8.bfloat16() * 0.5, v8.bfloat16() * 2, False, call.scale)
    tensors = {"q": call.q, "k": k8, "v": v8, "k_scale": 0.5, "v_scale": 2.0}
    assert judge(tensors | {"out": FLASH(narrow)}).answer == "ROUNDING"


def test_of_two_log_sums_each_is_judged_in_its_own_base(dense):
    """A base-e array under the name lse2 is wrong, whatever the array lse beside it holds."""
    natural, binary = dense["lse"], dense["lse"] * LOG2_E
    for lse in (natural, binary):
        assert judge(dense | {"lse": lse, "lse2": binary}).answer == "ROUNDING"
        assert judge(dense | {"lse": lse, "lse2": natural}).answer == "BUG"
        assert judge(dense | {"lse": lse + 1, "lse2": binary}).answer == "BUG"


def test_the_layout_of_a_cache_without_heads_is_of_no_consequence(tmp_path):
    """HND and NHD differ in the place of the heads, and the latent cache of MLA has no heads."""
    one = inputs.call("normal", inputs.Shape(2, 4, 1, 1, 48, 40, v_dim=32), "bf16", 5)
    latent = inputs.Call(one.q, one.k, one.k[..., :32], False, one.scale)
    pools, pages = paged(inputs.Call(one.q, one.k, one.k, False, one.scale))
    ckv, kpe, q = pools[0][:, :, 0, :32], pools[0][:, :, 0, 32:], one.q[:, :, 0]
    given = {"q_nope": q[..., :32], "q_pe": q[..., 32:], "ckv_cache": ckv, "kpe_cache": kpe}
    given |= pages | {"out": FLASH(latent)[:, :, 0], "sm_scale": one.scale}
    for layout in ({}, {"kv_layout": "HND"}):
        assert audit(saved(tmp_path, given | layout)).answer == "ROUNDING"
    with pytest.raises(ValueError, match="k is missing"):
        judge({"q": one.q, "out": given["out"], "kv_layout": "HND"})


@pytest.mark.parametrize("n_tokens", [1, 5])
def test_queries_as_bshd_beside_packed_keys(n_tokens):
    """The KV heads of packed keys are the last dimension but one, whatever D is."""
    lengths = (30, 7)
    call = inputs.call("normal", inputs.Shape(2, 4, 2, n_tokens, 30, 48), "bf16", 3)
    parts = [
        inputs.Call(call.q[b : b + 1], call.k[b : b + 1, :, :n], call.v[b : b + 1, :, :n], False, 1)
        for b, n in enumerate(lengths)
    ]
    q, out = (x.transpose(1, 2) for x in (call.q, torch.cat([FLASH(part) for part in parts])))
    k, v = (torch.cat([getattr(part, x)[0].transpose(0, 1) for part in parts]) for x in "kv")
    given = {"q": q, "k": k, "v": v, "out": out, "scale": 1, "cu_seqlens": np.array([0, 30, 37])}
    found = judge(given)
    assert found.answer == "ROUNDING", found.summary()
    assert "tensors taken as [B, S, H, D]" in found.note


def test_gradients_beside_an_output(dense, call):
    q, k, v = (x.double().requires_grad_() for x in (call.q, call.k, call.v))
    wide = inputs.Call(q, k, v, True, call.scale)
    out, dout = right.exact(wide)[0], torch.ones_like(dense["out"])
    grads = torch.autograd.grad((out * dout.double()).sum(), (q, k, v))
    tensors = dense | {"dout": dout, "lse": None}
    tensors |= {n: g.bfloat16() for n, g in zip(("dq", "dk", "dv"), grads, strict=True)}
    assert judge(tensors).answer == "ROUNDING"
    found = judge(tensors | {"dk": tensors["dk"] * 2})
    assert (found.answer, found.why.split()[0]) == ("BUG", "dk")


def bomb(path):
    """Write an npz of 60 kB that holds 60 MB of zeros."""
    head = str({"descr": "<f4", "fortran_order": False, "shape": (15, 1000, 1000)}).encode() + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    deflated = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
    with deflated as archive, archive.open("q.npy", "w") as file:
        file.write(content)
        for _ in range(60):
            file.write(bytes(10**6))


def hostile(tmp_path):
    """Write files that are broken, encrypted, too large, or hold more than data."""
    bomb(tmp_path / "bomb.npz")
    huge = str({"descr": "<f4", "fortran_order": False, "shape": (10**13,)}).encode() + b"\n"
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("q.npy", b"\x93NUMPY\x01\x00" + len(huge).to_bytes(2, "little") + huge)
    np.savez(tmp_path / "flat.npz", **dict.fromkeys("qkv", np.zeros((2, 3, 0))), out=np.zeros(1))
    np.savez(tmp_path / "locked.npz", q=np.zeros(3), out=np.zeros(3))
    content = bytearray((tmp_path / "locked.npz").read_bytes())
    for sign, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(sign)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(sign, at + 4)
    (tmp_path / "locked.npz").write_bytes(content)
    whole = (tmp_path / "flat.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "long.safetensors").write_bytes((2**60).to_bytes(8, "little"))
    entry = {"q": {"dtype": "F32", "shape": [10**7, 10**6], "data_offsets": [0, 4]}}
    text = json.dumps(entry).encode()
    (tmp_path / "claims.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"1234")
    torch.save({"q": torch.zeros(1).expand(10**9, 10**4)}, tmp_path / "wide.pt")
    (tmp_path / "noise.pt").write_bytes(b"\x80\x02cos\nsystem\n(S'true'\ntR.")
    (tmp_path / "list.pt").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    return sorted(path for path in tmp_path.iterdir())


def test_hostile_files_are_one_line_and_no_memory(tmp_path, capsys):
    files = hostile(tmp_path)
    for path in files:
        if path.suffix == ".npz":
            tracemalloc.start()
        assert cli.main(["audit", str(path), "--max-gib", "0.01"]) == 2, path
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        assert "Traceback" not in said
        if tracemalloc.is_tracing():
            assert tracemalloc.get_traced_memory()[1] < 20e6
            tracemalloc.stop()
    assert len(files) == 11


def test_a_header_of_a_gibibyte_before_few_bytes_costs_no_memory(tmp_path, capsys):
    head = str({"descr": "<f4", "fortran_order": False, "shape": (2**28,)}).encode() + b"\n"
    with zipfile.ZipFile(tmp_path / "claims.npz", "w") as archive:
        archive.writestr("q.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
    tracemalloc.start()
    assert cli.main(["audit", str(tmp_path / "claims.npz")]) == 2
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert "expand to" in capsys.readouterr().err


def test_every_importer_says_its_format_and_source():
    for module in importers.importers():
        assert module.FORMAT
        assert module.SOURCE.startswith("https://")
    assert names.canonical("model.layers.3.attn.query_states") == "q"
    assert names.canonical("rope_cos") is None
