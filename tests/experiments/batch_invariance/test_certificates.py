"""Certificates are recorded: a row says how many ways to call a kernel change a request's bits."""

import pytest

from labkernels.experiments.batch_invariance import certificates
from labkernels.experiments.experiment import Options
from labkernels.experiments.sweep import record
from labkernels.records import store

NAME = "decode_mma_n8/paged_decode"


@pytest.mark.parametrize("plan", ["free", "batch_invariant=True"])
def test_a_plan_that_looks_at_the_batch_is_told_from_one_that_does_not(
    plan, made_up_gpu, monkeypatch, tmp_path
):
    """Of 600 keys, 66 requests of 2 KV heads fill a wave with 2 splits; one request gets 3."""
    monkeypatch.setattr(certificates, "QUICK", {"lengths": (40, 600), "batches": (66,)})
    options = Options(
        out=tmp_path, quick=True, only=f"{NAME}/{plan}", commit="abc1234", say=lambda line: None
    )
    assert not record(certificates.EXPERIMENT, options).failures
    short, long = store.read(tmp_path / certificates.DATA_FILE)
    assert (short["kv_len"], short["changed"], long["ways"]) == (40, 0, 11)
    if plan == "free":
        assert (long["changed"], long["first"], long["asked"]) == (1, "in a batch of 66", "")
        assert long["heads"] > 0
    else:
        assert (long["changed"], long["first"], long["heads"]) == (0, "", 0)
