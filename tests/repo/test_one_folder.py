"""Each thing that is added in one place is found with nothing else edited."""

import subprocess
import sys
import textwrap

import pandas as pd
import pytest

from labkernels import cli, experiments, ops, plots
from labkernels.experiments import accuracy, performance
from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import record
from labkernels.kernels import decode as decode_room
from labkernels.kernels.choice import choose, missing
from labkernels.kernels.decode.operation import OPERATION
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.registry import discover, kernels_of
from labkernels.measure import peers
from labkernels.measure.benchmark import benchmark
from labkernels.measure.implementation import implementations
from labkernels.measure.peers import peer
from labkernels.plots import style
from labkernels.records import store
from tests import fake_gpu
from tests.kernels.contract import run_checked
from tests.kernels.decode.cases import decode_case

EXPERIMENT = '''
"""A toy: the keys of a request."""

from labkernels.experiments.experiment import Cell, Experiment
from labkernels.records import schema

DATA_FILE = "performance/toy.csv"


def cells(options):
    for kv_len in (16,) if options.quick else (16, 32):
        yield Cell(f"{kv_len} keys", kv_len)


def rows(cell, recording):
    judged = {"mutant": "", "family": "normal", "dtype": "bf16", "rule": "toy"}
    counts = {"runs": 1, "refused": 0, "undecided": 0}
    yield DATA_FILE, {"kernel": "toy", "kv_len": cell.of, **judged, **counts}


EXPERIMENT = Experiment(
    "toy", "How many keys", {DATA_FILE: schema.TABLES["detection"]}, cells, rows, needs_gpu=False
)
'''


PEER = '''
"""A toy: the truth, rounded once."""

import torch

from labkernels.kernels.call import Attention, Step
from labkernels.measure.peers.peer import PEER_POLICY, Peer
from labkernels.numerics.truth import oracle


def decode(inputs):
    truth, _ = oracle.attention(inputs.problem())
    out = torch.empty_like(inputs.q)
    return Step(lambda: out.copy_(torch.from_numpy(truth)), lambda: Attention(out), version="toy 1")


PEERS = (Peer("toy_decode", "toy", "float64", PEER_POLICY, {"decode": decode}, lambda: None),)
BUILDS = {"toy": lambda operation, shapes: f"no compiler for {operation} of {shapes}"}
'''


KERNEL = '''
"""decode_of_this_test: decode_fma under another name."""

from labkernels.kernels.decode.fma.spec import DecodeFma


class Toy(DecodeFma):
    """As its parent."""

    name = "decode_of_this_test"
    idea = "A toy: its parent under another name."
    parent = "decode_fma"


KERNEL = Toy()
'''


@pytest.fixture
def toy_kernel(tmp_path, monkeypatch):
    """Yield the name of a kernel whose specification and source lie beside those of decode."""
    folder = tmp_path / "decode" / "of_this_test"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "spec.py").write_text(KERNEL)
    source = discover()["decode_fma"].folder / "kernel.cuh"
    text = source.read_text().replace("decode_fma", "decode_of_this_test")
    (folder / "kernel.cuh").write_text(text)
    monkeypatch.setattr(decode_room, "__path__", [*decode_room.__path__, str(folder.parent)])
    for function in (discover, choose, missing):
        function.cache_clear()
    yield "decode_of_this_test"
    for function in (discover, choose, missing):
        function.cache_clear()
    for name in [name for name in sys.modules if ".decode.of_this_test" in name]:
        del sys.modules[name]


def test_a_copy_that_kept_its_name_is_refused(toy_kernel, tmp_path):
    spec = tmp_path / "decode" / "of_this_test" / "spec.py"
    spec.write_text(KERNEL.replace('"decode_of_this_test"', '"decode_fma"'))
    with pytest.raises(
        ValueError, match=r"'decode_fma' of two kernels, .*fma and .*of_this_test, allowed"
    ):
        discover()


def test_a_kernel_is_one_folder(toy_kernel, capsys):
    kernel = discover()[toy_kernel]
    assert toy_kernel in kernels_of("decode", "cuda")
    assert (kernel.header, kernel.operation) == ("decode/of_this_test/kernel.cuh", "decode")
    case = decode_case((0, 1, 17, 90), dtype="bf16")
    plan = run_checked(case, kernel, keys_per_split=64).plan
    assert (plan.kernel, plan.why[:30]) == (toy_kernel, "decode_of_this_test: named by ")
    assert toy_kernel in ops.decode(case.q, case.cache).plan.why
    found = implementations("decode")[toy_kernel]
    assert (found.library, found.tensor_cores) == ("cuda", "off")
    assert {case.instance.kernel for case in OPERATION.bit_cases(kernel)} == {toy_kernel}
    assert cli.main(["budget", toy_kernel, "--head-dim", "64"]) == 0
    report = capsys.readouterr().out
    assert report.startswith("decode_of_this_test for NVIDIA H200")
    assert "A toy: its parent under another name." in report


def test_a_kernel_is_benchmarked_and_drawn(toy_kernel, monkeypatch):
    fake_gpu.install(monkeypatch)
    work = Decode((5, 0, 40), 4, 2, 64, 16, "bf16")
    how = {"repeats": 3, "seed": 0, "device": "cpu", "graph": True, "eager": True}
    result = benchmark(OPERATION, work, implementations("decode").values(), **how)
    item = result.measured[toy_kernel]
    base = measured.implementation_row(work, item.implementation, plan=item.step.plan)
    rates = {"kv_bytes": work.kv_bytes, "copy_bytes_per_s": 1e12}
    rows = measured.time_rows(base, graph=item.graph, eager=item.eager, **rates)
    figure = plots.case_times(plots.graph_times(pd.DataFrame(rows)), origin="a toy")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [toy_kernel]
    assert style.colour(toy_kernel) in [line.get_color() for line in axes.lines]


@pytest.fixture
def rooms(tmp_path, monkeypatch):
    """Yield folders beside those of experiments; afterwards forget what was imported from them."""
    for package in (performance, accuracy):
        folder = tmp_path / package.__name__.rpartition(".")[2]
        folder.mkdir()
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield tmp_path
    for name in [name for name in sys.modules if name.endswith(".toy")]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", ["performance", "accuracy"])
def test_an_experiment_is_one_file(rooms, tmp_path, kind):
    before = set(experiments.discover())
    (rooms / kind / "toy.py").write_text(EXPERIMENT)
    assert set(experiments.discover()) - before == {"toy"}
    out = tmp_path / "data"
    outcome = record(experiments.find("toy"), Options(out=out, commit="abc1234", say=len))
    assert outcome.failures == ()
    rows = store.read(out / "performance" / "toy.csv")
    assert [(row["kernel"], row["kv_len"], row["commit"]) for row in rows] == [
        ("toy", 16, "abc1234"),
        ("toy", 32, "abc1234"),
    ]


@pytest.fixture
def forgetful():
    """Make labkernels look for peers again, before and after the test."""
    found = (peer.peers, peer.backends)
    for function in found:
        function.cache_clear()
    yield
    for function in found:
        function.cache_clear()
    sys.modules.pop("labkernels.measure.peers.toy", None)


def test_a_peer_is_one_file(forgetful, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "__path__", [*peers.__path__, str(tmp_path)])
    (tmp_path / "toy.py").write_text(PEER)
    assert "toy_decode" in peer.peers_of("decode")
    assert "toy_decode" not in peer.peers_of("prefill")
    reasons = peer.build("decode", [("bf16", 64)])
    assert reasons["toy"] == "no compiler for decode of [('bf16', 64)]"
    fake_gpu.install(monkeypatch)
    toy = implementations("decode")["toy_decode"]
    work = Decode((5, 0, 40), 4, 2, 64, 16, "bf16")
    how = {"repeats": 3, "seed": 0, "device": "cpu", "graph": True}
    result = benchmark(OPERATION, work, [toy], **how)
    assert result.reasons == ()
    found = result.measured["toy_decode"]
    assert (found.implementation.library, found.step.version) == ("toy", "toy 1")
    assert 0 < found.errors.bound_ratio < 1


def test_a_command_is_one_file(tmp_path):
    (tmp_path / "greet.py").write_text(
        textwrap.dedent(
            '''
            """`labkernels greet`."""

            HELP = "say a name"
            DESCRIPTION = "Say a name."


            def add_options(sub):
                sub.add_argument("name")


            def run(options):
                print(f"hello, {options.name}")
                return 0
            '''
        )
    )
    code = f"""
import labkernels.cli as cli
cli.__path__.append({str(tmp_path)!r})
cli.main(["greet", "reader"])
cli.main(["--help"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("hello, reader\n"), done.stderr
    assert "greet" in done.stdout.partition("\n")[2]
    assert "say a name" in done.stdout
