"""Two saved batches of our kernels: which requests changed bits, and that the cuts foretold it."""

from functools import partial

import pytest
import torch

from labkernels import cli, ops
from labkernels.hardware import gpu
from labkernels.planners import NotKnown
from labkernels.probing.our_cuts import labkernels
from labkernels.probing.parted import parted
from tests.kernels.decode.cases import decode_case
from tests.kernels.prefill.cases import prefill_case

# Of the first four alone, the shortest fits a split; 64 more requests fill the H200 without splits.
LENGTHS = (600, 520, 300, 64, *(20,) * 64)
TILE = "64x64x4x2x3-backward"
FEW, MANY = (0, 1, 2, 3), (3, 1, 0, 2, *range(4, 68))


def dump(folder, case, requests, name, *, out=None, **how):
    part = case.chosen(list(requests))
    cache = part.cache
    found = ops.decode(part.q, cache, scale=case.scale, **how).out if out is None else out
    path = folder / name
    tensors = {"q": part.q, "k": cache.k, "v": cache.v, "page_table": cache.page_table}
    tensors |= {"kv_len": cache.kv_len, "out": found}
    torch.save({name: x.cpu() for name, x in tensors.items()}, path)
    return path


def pair(folder, how, sets=(FEW, MANY)):
    case = decode_case(LENGTHS, group=4, kv_heads=2, dtype="bf16", layout="nhd")
    return [dump(folder, case, some, f"{len(some)}.pt", **how) for some in sets]


def test_requests_change_as_their_cuts_say(tmp_path, capsys):
    how = {"kernel": "decode_mma"}
    a, b = pair(tmp_path, how)
    found, requests = parted(a, b, partial(labkernels, gpu=gpu("h200"), **how))
    assert [r.numbers for r in requests] == [(0, 2), (1, 1), (2, 3), (3, 0)]
    assert [int(r.differs.sum()) for r in requests] == [8, 8, 7, 0]
    assert all((r.differs == r.predicted).all() for r in requests)
    assert found.differs.any()
    said = str(requests[0])
    assert said.startswith("request 0 changed because with 68 requests its 600 keys are not split")
    assert said.endswith("4 requests cut into 3 splits of 256; 8 of 8 heads differ, as predicted")
    assert str(requests[3]).startswith("request 3 has equal bits, and its 64 keys are cut alike")
    asked = ["explain", "labkernels", str(a), str(b), "--with", "kernel=decode_mma"]
    assert cli.main(asked) == 1
    said = capsys.readouterr().out
    assert "3 of 4 requests that both have changed bits" in said
    assert "right for 32 of 32 heads" in said


def test_a_plan_that_does_not_look_at_the_batch_changes_nothing(tmp_path):
    how = {"kernel": "decode_mma_n8", "batch_invariant": True}
    _, requests = parted(*pair(tmp_path, how), partial(labkernels, gpu=gpu("h200"), **how))
    assert not any(r.differs.any() or r.predicted.any() for r in requests)
    assert all(r.is_cut_alike for r in requests)


def test_bits_that_no_cut_explains_are_said_to_be_of_another_cause(tmp_path):
    case = decode_case((64, 64), group=4, kv_heads=2, dtype="bf16", layout="nhd")
    out = ops.decode(case.q, case.cache, scale=case.scale, kernel="decode_mma").out
    moved = out.clone()
    moved[1, 3, 0] = torch.nextafter(moved[1, 3, 0], torch.tensor(9.0, dtype=torch.bfloat16))
    a, b = (dump(tmp_path, case, (0, 1), n, out=x) for n, x in (("a.pt", out), ("b.pt", moved)))
    _, requests = parted(a, b, partial(labkernels, gpu=gpu("h200"), kernel="decode_mma"))
    assert str(requests[1]).startswith("request 1 changed, and not by its cut: 1 of 8 heads differ")


def test_a_prefill_is_explained_from_its_own_scores(tmp_path):
    case = prefill_case((20, 300), (520, 300), group=2, dtype="bf16", causal=True)
    paths = []
    for keys in (128, 256):
        step = case.run("prefill_mma", tile=TILE, keys_per_split=keys)
        kv = {"k": case.kv.k, "v": case.kv.v, "cu_seqlens": case.kv.cu_seqlens, "causal": True}
        tensors = {"q": case.q, **kv, "cu_seqlens_q": case.cu_seqlens_q, "out": step.out}
        paths.append(tmp_path / f"{keys}.pt")
        torch.save(tensors, paths[-1])
    sizes = iter((128, 256))

    def plan(batch):
        how = {"kernel": "prefill_mma", "tile": TILE, "keys_per_split": next(sizes)}
        return labkernels(batch, gpu("h200"), **how)

    _, requests = parted(*paths, plan)
    assert [r.keys for r in requests] == [520, 300]
    right = sum(int((r.differs == r.predicted).sum()) for r in requests)
    assert requests[0].differs.all()
    assert right == 8


def test_what_cannot_be_explained_is_refused(tmp_path):
    plan = partial(labkernels, gpu=gpu("h200"), kernel="decode_mma")
    case = decode_case((64, 64), group=4, kv_heads=2, dtype="bf16", layout="nhd")
    a = dump(tmp_path, case, (0, 1), "a.pt")
    for name, change, words in (
        ("window_left", 3, "see other keys|window"),
        ("k", lambda k: k + 1, "K differs in 2 requests"),
    ):
        tensors = torch.load(a)
        tensors[name] = change(tensors[name]) if callable(change) else change
        torch.save(tensors, tmp_path / "b.pt")
        with pytest.raises(ValueError, match=words):
            parted(a, tmp_path / "b.pt", plan)
        if name == "window_left":
            with pytest.raises(NotKnown, match="heads are not predicted"):
                parted(tmp_path / "b.pt", tmp_path / "b.pt", plan)
