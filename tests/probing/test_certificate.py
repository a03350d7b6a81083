"""The certificate: it finds what the batch changes, and nothing else."""

import json
import sys

import pytest
import torch

from labkernels import cli
from labkernels.probing import targets
from labkernels.probing.certificate import Sizes, certify
from labkernels.variant import AttentionVariant

# 64 keys a split: several splits at the small sizes that the CPU build computes quickly.
SPLIT = {"batch_invariant": True, "keys_per_split": 64}
SMALL = {"lengths": (40, 200), "batches": (2, 3)}
KERNELS = {
    ("decode_fma", "paged_decode"),
    ("decode_mma", "paged_decode"),
    ("decode_mma_n8", "paged_decode"),
    ("prefill_mma", "ragged"),
    ("prefill_mma", "paged_prefill"),
    ("prefill_wgmma", "ragged"),
    ("prefill_wgmma", "paged_prefill"),
    ("mla_mma", "mla"),
    ("mla_wgmma", "mla"),
}


def made(name, layout, options, **how):
    causal = layout in ("ragged", "paged_prefill")
    function = targets.find(name).function(layout, AttentionVariant(causal=causal))
    queries = 9 if causal else 1
    sizes = Sizes(4, 2, 64, queries=queries)
    how = {**SMALL, "sizes": sizes, "causal": causal, "dtype": "fp16", **how}
    return certify(function, layout, options=options, **how)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "layout"), sorted(KERNELS))
def test_our_kernels_do_not_look_at_the_batch(name, layout):
    found = made(name, layout, SPLIT)
    assert found.invariant, str(found)
    assert found.exit_code == 0
    words = {finding.words for finding in found.findings}
    assert {"again", "in a batch of 2", "last of 5", "after short ones"} <= words
    assert ("in pages of 1" in words) == (layout not in ("ragged",))
    assert ("token by token" in words) == (layout in ("ragged", "paged_prefill"))


def test_a_plan_that_looks_at_the_batch_is_found():
    """Three splits of 256 keys alone; 66 requests of 2 KV heads fill a wave with 2 splits."""
    found = made("decode_mma", "paged_decode", {}, lengths=(600,), batches=(2, 66))
    assert found.exit_code == 1
    assert {f.words for f in found.changed} == {"in a batch of 66"}
    assert "depend on how it is called: first in a batch of 66, 600 keys" in str(found)


def softmax(q, k, v):
    return torch.softmax(q.float() @ k.float().mT / 8, -1) @ v.float()


def test_a_neighbour_that_leaks_is_counted_by_head():
    def leaks(q, k, v):
        requests = zip(q, k, v, strict=True)  # one by one, since torch's products look at the batch
        out = torch.stack([softmax(*request) for request in requests])
        out[:, 1] += 1e-3 * (len(q) - 1)
        return out

    how = {"lengths": (30,), "batches": (2,), "sizes": Sizes(4, 4, 64, queries=3)}
    found = certify(leaks, "bhsd", "fp32", **how)
    assert [f.heads for f in found.changed] == [1, 1], "a batch of 2, the last of 5"
    assert found.changed[0].q_heads == 4


def test_a_nondeterministic_kernel_is_called_that():
    calls = []

    def drifts(q, k, v):
        calls.append(1)
        return softmax(q, k, v) + 1e-6 * len(calls)

    how = {"lengths": (30,), "batches": (2,), "sizes": Sizes(4, 4, 64, queries=3)}
    assert "nondeterministic" in str(certify(drifts, "bhsd", "fp32", **how))


def test_a_kernel_that_refuses_is_not_judged():
    def refuses(*tensors):
        raise RuntimeError("no such shape\nmore")

    found = certify(refuses, "bhsd", lengths=(30,))
    assert found.exit_code == 2
    assert found.invariant is None
    assert "refused: RuntimeError: no such shape" in str(found)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda q: q.sum(), "the output has shape ()"),
        (lambda q: q[:, :1], "the output has shape (1, 1, 16, 128)"),
        (lambda q: sys.exit(3), "SystemExit: 3"),
    ],
    ids=["a number", "one head", "an exit"],
)
def test_whatever_a_kernel_ends_in_is_a_line(end, words):
    found = certify(lambda q, k, v: end(q), "bhsd", lengths=(30,))
    assert found.exit_code == 2
    assert words in str(found)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"lengths": (3,)}, "lengths"),
        ({"layout": "hdsb"}, "layout"),
        ({"layout": "mla", "sizes": Sizes(queries=2)}, "queries = 2, allowed in mla: 1"),
    ],
)
def test_wrong_requests(how, words):
    with pytest.raises(ValueError, match=words):
        certify(softmax, **{"layout": "bhsd", **how})


def test_the_command(capsys):
    small = ["--keys", "40", "--batches", "2", "--heads", "4/2", "--head-dim", "64"]
    assert cli.main(["certify", "decode_mma", *small, "--with", "batch_invariant=true"]) == 0
    assert "depend on the request alone" in capsys.readouterr().out
    assert cli.main(["certify", "decode_mma", *small, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["heads"] for row in rows} == {0}
    assert cli.main(["certify", "decode_mma", "--keys", "many"]) == 2
