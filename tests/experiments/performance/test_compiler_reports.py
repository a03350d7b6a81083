import pytest

from labkernels import hardware
from labkernels.cuda.compiler import nvrtc
from labkernels.experiments.experiment import Options
from labkernels.experiments.performance import compiler_reports
from labkernels.experiments.performance.compiler_reports import EXPERIMENT
from labkernels.experiments.sweep import record
from labkernels.records import store

needs_nvrtc = pytest.mark.skipif(nvrtc.available() is not None, reason="needs NVRTC")


@needs_nvrtc
def test_one_instance_is_reported_for_every_architecture(tmp_path):
    options = Options(out=tmp_path, quick=True, only="decode_mma/fp16/d64", say=len)
    outcome = record(EXPERIMENT, options)
    rows = store.read(tmp_path / compiler_reports.DATA_FILE)
    assert outcome.rows == len(rows) == len(hardware.ARCHS)
    assert {row["arch"] for row in rows} == set(hardware.ARCHS)
    assert {row["kernel"] for row in rows} == {"decode_mma"}


def test_an_architecture_without_the_instructions_is_left_out_in_words(tmp_path, monkeypatch):
    def compiled(instance, started_utc):
        return []

    monkeypatch.setattr(nvrtc, "available", lambda: None)
    monkeypatch.setattr(compiler_reports, "_compiled", compiled)
    for kernel in ("mla_wgmma", "prefill_wgmma", "backward_wgmma"):
        said = []
        options = Options(out=tmp_path, quick=True, only=kernel, say=said.append)
        assert record(EXPERIMENT, options).failures == ()
        assert "not sm_80, " in said[-1]
        assert "it needs sm_90a" in said[-1]
    for cell in EXPERIMENT.chosen(Options()):
        archs = compiler_reports.archs(cell.of)
        on_hopper_alone = "wgmma" in cell.label or cell.of.features
        assert archs == (("sm_90a",) if on_hopper_alone else hardware.ARCHS)
