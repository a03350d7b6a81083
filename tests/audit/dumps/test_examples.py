"""Every example that `labkernels audit` and `compare` print is run, on files of the names there."""

import re
import shlex

import numpy as np
import pytest
import torch

from labkernels import cli
from labkernels.cli import audit, compare
from tests.measure.strangers import inputs, right
from tests.repo.files import ROOT

FLASH = right.RIGHT["flash, blocks of 64"]
PREFILL = inputs.call("normal", inputs.Shape(1, 32, 8, 6, 6, 16, causal=True), "bf16", 1)
NAMES = ("q", "k", "v", "out")
EXAMPLES = [
    line
    for text in (audit.DESCRIPTION, compare.DESCRIPTION)
    for line in re.findall(r"^  (labkernels .*?)(?:  .*)?$", text, re.MULTILINE)
]


def of(call, *names):
    return dict(zip(names, (call.q, call.k, call.v, FLASH(call)), strict=True))


def files(line):
    """Return what the owner of an example's files has saved, by file."""
    plain = of(PREFILL, *NAMES) | {"causal": True}
    if "mine" in line:
        return {"dump.pt": of(PREFILL, "mine", "k", "v", "y") | {"causal": True}}
    if "sbhd" in line:
        tensors = of(PREFILL, *NAMES)
        flat = {n: x.permute(2, 0, 1, 3).flatten(2) for n, x in tensors.items()}
        return {"dump.pt": flat | {"causal": True}}
    if "fp32" in line:
        wide = inputs.call("normal", inputs.SHAPES[1], "bf16", 1)
        exact = right.exact(wide)[0].bfloat16()
        causal = inputs.SHAPES[1].causal
        return {"dump.npz": of(wide, *NAMES) | {"out": exact, "causal": causal}}
    if "hidden" in line:
        named = {("hidden" if name == "out" else name): x for name, x in plain.items()}
        return {"train.safetensors": named, "rollout.npz": {"hidden": plain["out"]}}
    last = {"q": PREFILL.q[:, :, -1], "k": PREFILL.k, "v": PREFILL.v, "out": plain["out"][:, :, -1]}
    return {"dump.npz": plain, "prefill.pt": plain, "decode.pt": last}


def save(path, tensors):
    tensors = {name: torch.as_tensor(x).contiguous() for name, x in tensors.items()}
    if path.suffix == ".npz":
        bits = {
            n: x.view(torch.uint16) if x.dtype == torch.bfloat16 else x for n, x in tensors.items()
        }
        np.savez(path, **{name: x.numpy() for name, x in bits.items()})
    elif path.suffix == ".safetensors":
        pytest.importorskip("safetensors.torch").save_file(tensors, path)
    else:
        torch.save(tensors, path)


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_runs_and_says_rounding(line, tmp_path, monkeypatch, capsys):
    if "--html" in line:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    for name, tensors in files(line).items():
        save(tmp_path / name, tensors)
    code = cli.main(shlex.split(line)[1:])
    out = capsys.readouterr().out
    assert (code, out.split(":")[0] in ("ROUNDING", "EQUAL BITS")) == (0, True), out
    assert "--html" not in line or (tmp_path / "report.html").stat().st_size


def test_the_line_of_the_readme(tmp_path, monkeypatch):
    (saving,) = re.findall(
        r"`(torch\.save\(dict\(.*?\"dump\.pt\"\))`", (ROOT / "README.md").read_text()
    )
    monkeypatch.chdir(tmp_path)
    exec(saving, {"torch": torch} | of(PREFILL, *NAMES))
    assert cli.main(["audit", "dump.pt"]) == 0


def test_there_are_examples_of_every_kind():
    assert len(EXAMPLES) == 8
