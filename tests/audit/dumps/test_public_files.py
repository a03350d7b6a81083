"""Files of FlashInfer-Bench and SGLang that hold more than one call, or less than all inputs."""

import json

import pytest
import torch

from labkernels.audit.dumps import audit
from tests.measure.strangers import inputs, right

CALL = inputs.call("normal", inputs.Shape(2, 4, 2, 1, 16, 32), "fp16", 3)
FLASH = right.RIGHT["flash, blocks of 64"]
ENDS = torch.arange(3, dtype=torch.int32) * 16
GIVEN = {
    "q": CALL.q[:, :, 0],
    "k": CALL.k.transpose(1, 2).flatten(0, 1),
    "v": CALL.v.transpose(1, 2).flatten(0, 1),
    "cu_seqlens": ENDS,
}


def trace(tmp_path, kind="safetensors"):
    """Write a trace of a definition and two workloads, and return its file."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file({n: x.contiguous() for n, x in GIVEN.items()}, tmp_path / "w.safetensors")
    place = {"type": "safetensors", "path": "w.safetensors"}
    specs = {name: place | {"tensor_key": name} for name in GIVEN} | {"q": {"type": kind}}
    if kind == "safetensors":
        specs["q"] = place | {"tensor_key": "q"}
    lines = [{"definition": "gqa", "name": "x"}]
    lines += [{"definition": "gqa", "workload": {"uuid": u, "inputs": specs}} for u in ("a", "b")]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path / "t.jsonl", save_file


def test_the_workload_with_an_output_is_read_on_whatever_line(tmp_path):
    path, save_file = trace(tmp_path)
    with pytest.raises(ValueError, match=r"2 workloads, and outputs of 0 .*t\.a\.out\.safetensors"):
        audit(path)
    save_file({"output": FLASH(CALL)[:, :, 0].contiguous()}, tmp_path / "t.b.out.safetensors")
    assert audit(path).answer == "ROUNDING"


def test_a_random_input_is_saved_beside_the_output(tmp_path):
    path, save_file = trace(tmp_path, kind="random")
    out = {"output": FLASH(CALL)[:, :, 0].contiguous()}
    save_file(out, tmp_path / "t.b.out.safetensors")
    with pytest.raises(ValueError, match=r"q was drawn at random .* output in t\.b\.out\.safet"):
        audit(path)
    save_file(out | {"q": GIVEN["q"].contiguous()}, tmp_path / "t.b.out.safetensors")
    assert audit(path).answer == "ROUNDING"


def test_the_folder_above_sglangs_dumps_and_candidates_where_nothing_fits(tmp_path):
    folder = tmp_path / "dumps" / "run_1"
    folder.mkdir(parents=True)
    for name, value in {"q": GIVEN["q"], "hidden": FLASH(CALL)[:, :, 0]}.items():
        torch.save({"value": value}, folder / f"step=0___rank=0___name=attn__{name}.pt")
    with pytest.raises(ValueError, match="there are hidden, q; --map q=NAME"):
        audit(folder.parent)
    for name in ("k", "v", "cu_seqlens"):
        torch.save({"value": GIVEN[name]}, folder / f"step=0___rank=0___name=attn__{name}.pt")
    assert audit(folder.parent, names={"out": "hidden"}).answer == "ROUNDING"
    (tmp_path / "dumps" / "run_2").mkdir()
    torch.save({"value": 0}, tmp_path / "dumps" / "run_2" / "step=0___name=q.pt")
    with pytest.raises(ValueError, match="2 folders of dumps, allowed: one of run_1, run_2"):
        audit(folder.parent)
