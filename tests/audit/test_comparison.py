"""A comparison of two outputs says: equal bits, rounding and where it begins, or a bug."""

import torch

from labkernels import cli
from labkernels.audit.comparison import EQUAL, compare
from labkernels.measure.strangers import inputs, right

PREFILL = inputs.Shape(1, 2, 1, 90, 90, 32, causal=True)
FLASH = right.RIGHT["flash, blocks of 64"]
SHORT = right.Flash(block=32)


def dump(call, out, **more):
    return {"q": call.q, "k": call.k, "v": call.v, "out": out, "causal": 1, **more}


def decode_of(call, n):
    """Return the last n queries, each as its own request with the keys up to that query."""
    length = call.k.shape[2]
    q = call.q[0, :, length - n :].transpose(0, 1)
    k, v = (x.expand(n, *x.shape[1:]).contiguous() for x in (call.k, call.v))
    lens = torch.arange(length - n + 1, length + 1)
    outs = []
    for i in range(n):
        keys = int(lens[i])
        one = inputs.Call(q[i][None, :, None], k[:1, :, :keys], v[:1, :, :keys], False, call.scale)
        outs.append(SHORT(one)[0, :, 0])
    return {"q": q, "k": k, "v": v, "kv_len": lens, "out": torch.stack(outs), "scale": call.scale}


def test_equal_bits_and_the_first_tile_where_two_part():
    call = inputs.call("normal", PREFILL, "bf16", 1)
    same = compare(dump(call, FLASH(call)), dump(call, FLASH(call)))
    assert same.answer == EQUAL
    other = compare(dump(call, FLASH(call)), dump(call, SHORT(call)))
    assert other.answer == "ROUNDING"
    text = other.summary()
    assert "rows of up to" in text
    assert "tiles or splits of 32 keys would part them so" in text, text


def test_decode_against_prefill_matches_tokens_by_their_queries():
    call = inputs.call("normal", PREFILL, "bf16", 2)
    found = compare(dump(call, FLASH(call)), decode_of(call, 3))
    assert found.answer == "ROUNDING", found.summary()
    assert found.tokens_a.tolist() == [87, 88, 89]
    wrong = decode_of(call, 3)
    wrong["out"] = wrong["out"].roll(1, 1)
    found = compare(dump(call, FLASH(call)), wrong)
    assert found.answer == "BUG"
    assert found.summary().startswith("BUG: b wrong")


def test_the_command(tmp_path, capsys):
    call = inputs.call("normal", PREFILL, "bf16", 3)
    torch.save(dump(call, FLASH(call)), tmp_path / "a.pt")
    torch.save({"out": SHORT(call)}, tmp_path / "b.pt")
    paths = [str(tmp_path / name) for name in ("a.pt", "b.pt")]
    assert cli.main(["compare", *paths]) == 0
    assert capsys.readouterr().out.startswith("ROUNDING: ")
    torch.save({"out": SHORT(call) * 0}, tmp_path / "b.pt")
    assert cli.main(["compare", *paths]) == 1
    assert cli.main(["compare", paths[0], str(tmp_path / "no.pt")]) == 2
