"""Folders of SGLang that hold more than one run, or no output of a known name."""

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
