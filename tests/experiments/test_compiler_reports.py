import pytest

from labkernels import hardware
from labkernels.cuda import compile as nvrtc
from labkernels.experiments import Options, compiler_reports
from labkernels.records import store


@pytest.mark.skipif(nvrtc.available() is not None, reason="needs NVRTC")
def test_one_instance_is_reported_for_every_architecture(tmp_path):
    options = Options(out=tmp_path, quick=True, only="decode_mma/fp16/d64", say=lambda line: None)
    outcome = compiler_reports.run(options)
    rows = store.read(tmp_path / "compiler_reports.csv")
    assert outcome.rows == len(rows) == len(hardware.ARCHS)
    assert {row["arch"] for row in rows} == set(hardware.ARCHS)
    assert {row["kernel"] for row in rows} == {"decode_mma"}


@pytest.mark.skipif(nvrtc.available() is not None, reason="needs NVRTC")
def test_several_instances_are_compiled_side_by_side(tmp_path):
    said = []
    options = Options(out=tmp_path, only="decode_mma_n8/fp16/d64", say=said.append)
    outcome = compiler_reports.run(options)
    rows = store.read(tmp_path / "compiler_reports.csv")
    assert outcome.rows == len(rows) == len(said) * len(hardware.ARCHS)
    assert len({(row["tile"], row["group"]) for row in rows}) == len(said) > 1


def test_a_missing_compiler_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(nvrtc, "available", lambda: "there is no NVRTC")
    with pytest.raises(ValueError, match="needs a compiler: there is no NVRTC"):
        compiler_reports.run(Options(out=tmp_path))


def test_the_committed_table_is_never_replaced_by_a_part(monkeypatch):
    monkeypatch.setattr(nvrtc, "available", lambda: None)
    with pytest.raises(ValueError, match="must be whole"):
        compiler_reports.run(Options(quick=True))
    with pytest.raises(ValueError, match="only is 'nothing'"):
        compiler_reports.run(Options(only="nothing"))
