from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from labkernels.experiments import (  # noqa: E402
    Options,
    _decode_cell,
    _decode_grid,
    decode_tensor_cores,
)
from labkernels.experiments._contenders import Contender, Ready, contenders  # noqa: E402
from labkernels.measure import cases, device, peers, timing  # noqa: E402
from labkernels.measure.accuracy import Chain  # noqa: E402
from labkernels.records import store  # noqa: E402
from labkernels.workload import Decode  # noqa: E402

WORKLOAD = Decode.uniform(2, 40, q_heads=4, kv_heads=2, head_dim=64, dtype="fp16")
CHAIN = Chain(tensor_cores=True, denominator="rounded")


def contender(name, prepare, backend="torch"):
    return Contender(name, name, backend, "on", "", CHAIN, lambda: None, prepare)


def right(case):
    step = peers.PEERS["torch_sdpa"].prepare(case.q, case.cache, scale=case.scale)
    return Ready(step.run, step.out, None, None)


def wrong(case):
    ready = right(case)

    def run():
        ready.run()
        ready.out[0, 0, 0] += 1.0

    return Ready(run, ready.out, None, None)


def lazy(case):
    return Ready(lambda: None, torch.zeros_like(case.q), None, None)


def breaker(case):
    def run():
        raise RuntimeError("out of resource: shared memory")

    return Ready(run, torch.zeros_like(case.q), None, None)


def refuser(case):
    raise peers.Refused("group 2 is unsupported")


EVERYONE = {
    item.name: item
    for item in (
        contender("decode_fma", right),
        contender("decode_mma", right),
        contender("wrong", wrong, backend="cuda"),
        contender("lazy", lazy),
        contender("breaker", breaker),
        contender("refuser", refuser),
        contender("absent", right, backend="flashinfer"),
    )
}


class Graph:
    def __init__(self, replay):
        self.replay = replay


@pytest.fixture
def on_cpu(monkeypatch):
    """Let the experiment run on the CPU, with times that are made up."""

    def timed(actions, *, repeats, eager=False):
        for action in actions.values():
            action()
        median_s = 2e-3 if eager else 1e-3
        return {
            name: timing.Quartiles(0.9 * median_s, median_s, 1.1 * median_s, repeats)
            for name in actions
        }

    def cpu_case(workload, *, seed):
        return cases.decode_case(workload, seed=seed, device="cpu")

    monkeypatch.setattr(timing, "time_interleaved", timed)
    monkeypatch.setattr(timing, "capture", Graph)
    monkeypatch.setattr(_decode_cell, "decode_case", cpu_case)

    @contextmanager
    def sampling():
        yield device.Reading(1980.0, 500.0, "580")

    monkeypatch.setattr(device, "sampling", sampling)


def test_only_outputs_within_their_bound_are_measured(on_cpu):
    cell = _decode_grid.Cell(
        Decode.uniform(2, 40, q_heads=4, kv_heads=2, head_dim=128, dtype="fp16"), "test"
    )
    missing = {"flashinfer": "flashinfer-python is not installed"}
    result = _decode_cell.measure_cell(cell, EVERYONE, repeats=12, seed=1, missing=missing)
    assert list(result.measured) == ["decode_fma", "decode_mma"]
    measured = result.measured["decode_mma"]
    assert measured.graph.median_s == 1e-3
    assert (measured.eager.median_s, measured.eager.repeats) == (2e-3, 4)
    assert 0 < measured.errors.bound_ratio < 1
    words = {item.name: (metric, reason) for item, metric, reason in result.words}
    assert words["refuser"] == ("refused", "group 2 is unsupported")
    assert words["breaker"] == ("failed", "out of resource: shared memory")
    assert words["absent"] == ("unavailable", "flashinfer-python is not installed")
    for name in ("wrong", "lazy"):
        assert words[name][0] == "failed"
        assert "of its bound, allowed: 1" in words[name][1]
    assert result.sensors["sm_clock_mhz"] == 1980.0


def test_what_cannot_be_captured_keeps_its_eager_time(on_cpu, monkeypatch):
    def no_capture(action):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(timing, "capture", no_capture)
    result = _decode_cell.measure_cell(
        _decode_grid.Cell(WORKLOAD, "test"),
        {"decode_mma": EVERYONE["decode_mma"]},
        repeats=12,
        seed=1,
        missing={},
    )
    measured = result.measured["decode_mma"]
    assert measured.graph is None
    assert measured.note.startswith("not captured: operation not permitted")


def test_flashinfer_sits_out_other_head_dims(on_cpu):
    cell = _decode_grid.Cell(WORKLOAD, "head_dim 64")
    absent = {"absent": EVERYONE["absent"]}
    result = _decode_cell.measure_cell(cell, absent, repeats=12, seed=1, missing={})
    assert (result.measured, result.words) == ({}, [])


@pytest.fixture
def tiny_experiment(on_cpu, monkeypatch):
    from labkernels.cuda import device as cuda_device

    cells = [
        _decode_grid.Cell(WORKLOAD, "case 000", accuracy_map=True),
        _decode_grid.Cell(Decode.uniform(1, 16, q_heads=2, kv_heads=2, head_dim=64), "group 1"),
    ]
    facts = {"gpu": "FAKE", "driver": "1", "cuda": "13", "torch": "2", "triton": ""}
    copy = (timing.Quartiles(0.9, 1.0, 1.1, 20), 4_000_000_000_000)
    monkeypatch.setattr(decode_tensor_cores, "grid", lambda *, quick: cells)
    monkeypatch.setattr(decode_tensor_cores, "contenders", lambda: EVERYONE)
    monkeypatch.setattr(cuda_device, "available", lambda: None)
    monkeypatch.setattr(device, "facts", lambda: facts)
    monkeypatch.setattr(timing, "ceilings", lambda: {"copy": copy})


def test_a_run_writes_both_files_and_names_failures(tiny_experiment, tmp_path):
    said = []
    options = Options(out=tmp_path, repeats=12, commit="abc1234", say=said.append)
    outcome = decode_tensor_cores.run(options)
    rows = store.read(tmp_path / "decode_tensor_cores.csv")
    maps = store.read(tmp_path / "decode_accuracy.csv")
    assert outcome.rows == len(rows) + len(maps)
    assert [line.split(" on ")[0] for line in outcome.failures] == ["wrong"] * 2
    timed = store.select(rows, {"metric": "time_graph", "statistic": "median"})
    assert {row["kernel"] for row in timed} == {"decode_fma", "decode_mma"}
    assert {row["metric"] for row in rows} >= {"failed", "refused", "difference", "bandwidth"}
    assert {row["kernel"] for row in maps} == {
        "decode_fma",
        "decode_mma",
        "decode_mma - decode_fma",
    }
    assert len(maps) == 3 * 2 * 4
    assert (tmp_path / "datapackage.json").exists()
    assert any("copy ceiling 4.00 TB/s" in line for line in said)


def test_measurements_grow_and_the_map_is_the_newest(tiny_experiment, tmp_path):
    options = Options(out=tmp_path, commit="abc1234", say=lambda line: None)
    first = decode_tensor_cores.run(options)
    decode_tensor_cores.run(options)
    rows = store.read(tmp_path / "decode_tensor_cores.csv")
    maps = store.read(tmp_path / "decode_accuracy.csv")
    assert len(rows) == 2 * (first.rows - len(maps))
    fresh = Options(out=tmp_path, commit="abc1234", replace=True, say=lambda line: None)
    decode_tensor_cores.run(fresh)
    assert 2 * len(store.read(tmp_path / "decode_tensor_cores.csv")) == len(rows)


def test_a_quick_run_stays_out_of_the_committed_data(tiny_experiment):
    with pytest.raises(ValueError, match="--quick with --out"):
        decode_tensor_cores.run(Options(quick=True, commit="abc1234"))
    with pytest.raises(ValueError, match="repeats is 1; allowed: 2 or more"):
        decode_tensor_cores.run(Options(repeats=1, commit="abc1234"))


def test_our_kernels_and_all_peers_take_part():
    found = contenders()
    assert set(peers.PEERS) < set(found)
    ours = {"decode_fma", "decode_mma", "decode_mma_n8", "triton_decode on", "triton_decode off"}
    assert ours < set(found)
    assert (found["decode_fma"].tensor_cores, found["decode_mma"].tensor_cores) == ("off", "on")
    assert "reference" not in {item.kernel for item in found.values()}
    instance = found["decode_mma"].instance(WORKLOAD, "4x16x3x4")
    assert (instance.dtype, instance.head_dim, instance.tile.label) == ("fp16", 64, "4x16x3x4")
