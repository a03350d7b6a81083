"""Each command does what its help says, and a wrong request is one line."""

import re
import subprocess
import sys

import numpy as np
import pytest

from labkernels import cli, experiments, hardware
from labkernels.cli import budget, doctor
from labkernels.cli.record import process
from labkernels.cuda.compiler import nvrtc
from labkernels.experiments import sweep
from labkernels.kernels.append.workload import Append
from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.operation import operations
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.kernels.registry import discover
from labkernels.measure import ladder, resources
from labkernels.records import scoreboard
from labkernels.units import format_time
from labkernels.variant import AttentionVariant

COMMANDS = tuple(cli.commands())


def call(capsys, *arguments):
    code = cli.main(arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("arguments", [("--help",), *((name, "--help") for name in COMMANDS)])
def test_help_teaches(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "usage: labkernels" in text
    assert "examples:" in text or arguments[0] == "doctor"
    assert max(map(len, text.splitlines())) <= 100


def test_help_needs_neither_torch_nor_numpy():
    code = """
import sys, labkernels.cli as c
for name in ("", *c.commands()):
    try:
        c.main([*filter(None, [name]), "--help"])
    except SystemExit:
        pass
sys.exit(str({"torch", "numpy", "triton"} & set(sys.modules) or "") or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_record_lists_experiments_and_the_cells_of_one(capsys):
    code, out, _ = call(capsys, "record", "--list")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "34 cells" in lines["decode_tensor_cores"]
    assert all("not yet measured" in line or "about" in line for line in lines.values())
    code, out, _ = call(
        capsys, "record", "decode_tensor_cores", "--list", "--only", "group 7|131072"
    )
    assert code == 0
    labels = out.splitlines()
    assert len(labels) == 4
    assert all("(group 7)" in label or "1 x 131072" in label for label in labels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("budget", "nope"), "kernel = 'nope', allowed: append, merge_states"),
        (("budget", "decode_mma", "--gpu", "gtx"), "gpu = 'gtx', allowed: t4, a100"),
        (("budget", "decode_mma", "--gpu", "a100", "--arch", "sm_90"), "allowed for gpu = 'a100'"),
        (("budget", "decode_mma", "--tile", "9x9"), "tile = '9x9', allowed for decode_mma"),
        (("budget", "decode_mma", "--head-dim", "48"), "head_dim = 48, allowed for decode_mma"),
        (("budget", "decode_mma", "--heads", "9/8"), "heads = 9/8, allowed"),
        (("budget",), "kernel = None, allowed: a name"),
        (("budget", "decode_mma", "--published", "fa2"), "allowed: a name, or --published"),
        (("budget", "--published", "fa2", "--tile", "64"), "allowed: rows x keys x warps"),
        (("budget", "--published", "fa2", "--tile", "axb"), "tile = 'axb', allowed: rows x keys"),
        (("budget", "decode_mma", "--batch", "4"), "allowed: both or neither"),
        (("run", "nope"), "kernel = 'nope', allowed: append, merge_states"),
        (("run", "decode_fma", "--tensor-cores", "on"), "tensor_cores = 'on', allowed for"),
        (("run", "decode_fma", "--repeats", "1"), "repeats = 1, allowed: 2 or more"),
        (("run", "decode_fma", "--kv-len", "-1"), "-1"),
        (("tune", "prefill_wgmma_fp8"), "allowed: --no-gpu; `labkernels record prefill_fp8` times"),
        (("tune", "merge_states"), "kernel = 'merge_states', allowed: append, "),
        (("tune", "prefill_mma", "--kv-dtype", "e4m3"), "--kv-dtype e4m3, allowed for prefill_mma"),
        (
            ("budget", "prefill_mma", "--kv-dtype", "e4m3"),
            "allowed for prefill_mma: none",
        ),
        (("budget", "decode_mma", "--kv-dtype", "fp8"), "allowed for decode_mma: e4m3, e5m2"),
        (("budget", "--published", "fa2", "--kv-dtype", "e4m3"), "fa2 with e4m3, allowed: none"),
        (("tune", "prefill_mma", "--head-dim", "48", "--no-gpu"), "head_dim = 48, allowed for"),
        (("tune", "prefill_mma", "--top", "-1"), "top = -1, allowed: 0 or more"),
        (("tune", "prefill_mma", "--no-gpu", "--gpu", "gtx"), "gpu = 'gtx', allowed: t4, a100"),
        (("tune", "prefill_mma", "--no-gpu", "--batch", "0"), "q_lens"),
        (("run", "decode_mma", "--window", "9,2"), "RIGHT = 2, allowed with the one token of a d"),
        (("run", "prefill_mma", "--causal", "--window", "9,2"), "= 2, allowed with --causal: LEFT"),
        (("run", "decode_mma", "--soft-cap", "-1"), "--soft-cap = -1, allowed: a positive number"),
        (("run", "mla_mma", "--window", "9"), "window, allowed for mla_mma: none; window 9: no ke"),
        (("run", "append", "--sinks"), "a variant with sinks, allowed for append: none; sinks: no"),
        (("budget", "decode_mma", "--mask"), "with mask, allowed for decode_mma: window, soft_cap"),
        (
            ("budget", "prefill_wgmma_basic", "--sinks"),
            "none; sinks: prefill_fma, triton_prefill,",
        ),
        (("tune", "prefill_mma", "--no-gpu", "--causal", "--window", "8,8"), "with --causal: LEFT"),
        (("budget", "--published", "fa2", "--sinks"), "--published fa2 with sinks, allowed: none"),
        (("audit", "/no/such.npz"), "/no/such.npz: no such file"),
        (("run", "triton_decode", "--checks"), "checks = True, allowed: a CUDA kernel; triton_dec"),
        (("budget", "mla_mma", "--head-dim", "128"), "head_dim = 128, allowed for mla_mma: 576"),
        (("budget", "prefill_wgmma", "--gpu", "a100"), "prefill_wgmma needs sm_90a, this is"),
        (("budget", "decode_mma", "--gpu", "t4"), "decode_mma needs sm_80 or newer, this is"),
        (("record",), "experiment is missing; allowed: backward"),
        (("record", "nope", "--commit", "abc1234"), "experiment is 'nope'; allowed: backward"),
        (("scoreboard", "--data", "/no/such/folder"), "/no/such/folder/targets.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_request_is_one_line_and_code_2(capsys, arguments, message):
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("labkernels: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_budget_shows_ledgers_formulas_and_waves(capsys):
    code, out, _ = call(
        capsys, "budget", "decode_mma", "--gpu", "a100", "--batch", "57", "--kv-len", "8192"
    )
    assert code == 0
    for words in (
        "53,248 B (52.0 KiB)",
        "reported_register_formula",
        "kv_split_register_formula",
        "= 72: the warps split the keys",
        "blocks per SM",
        "x 108 blocks",
    ):
        assert words in out


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_budget_counts_the_codes_and_scales_of_a_cache_of_8_bits(capsys, kind):
    shape = ("--gpu", "h200", "--batch", "57", "--kv-len", "8192", "--kv-dtype", kind)
    code, out, _ = call(capsys, "budget", "decode_mma", *shape)
    assert code == 0
    work, gpu = (
        Decode.uniform(57, 8192, q_heads=32, kv_heads=8, kv_dtype=kind),
        hardware.gpu("h200"),
    )
    time = format_time(work.bytes / gpu.measured_copy_bytes_per_s)
    for words in (f"bf16, {kind} cache, head_dim 128", "codes", "channels x 1 B", work.label, time):
        assert words in out


PLANNED = {
    "decode_mma": Decode((300, 40), 8, 2, 64, 16, "bf16"),
    "prefill_mma": Prefill((300, 40), (300, 70), 4, 2, 64, causal=True, page_size=16),
    "mla_mma": MlaDecode((300, 40), 17, q_len=2, page_size=16),
    "backward_mma": Backward((300, 40), (300, 70), 4, 2, 64, causal=True),
    "append": Append((300, 40), (3, 50), 2, 64),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PLANNED)
def test_budget_plans_as_the_operation_does_on_tensors_with_numbers(name):
    workload, gpu = PLANNED[name], hardware.gpu("a100")
    kernel = discover()[name]
    head_dim = 576 if kernel.operation == "mla" else 64
    instance = kernel.instance(kernel.shape(head_dim=head_dim, group=workload.group), gpu=gpu)
    of = operations()[kernel.operation]
    how = {"kernel": kernel.with_tile(instance.tile), "target": gpu.key}
    real = of.step(of.inputs(workload, Normal(0, "cpu")), **how).plan
    assert budget.plan(instance, workload, gpu) == real


@pytest.mark.parametrize(
    ("kernel", "shape", "words"),
    [
        ("mla_mma", ("--head-dim", "576", "--heads", "16/1"), "16 heads, d512+64"),
        ("backward_mma", ("--causal",), "4 x 512 on 4 x 512, 32/8, d128, causal"),
        ("prefill_mma", ("--q-len", "64"), "4 x 64 on 4 x 512, 32/8, d128, page 16, full"),
        ("append", ("--q-len", "7"), "4 x 7 after 4 x 512, 8 heads, d128, page 16"),
    ],
)
def test_budget_counts_the_work_of_the_kernels_own_operation(capsys, kernel, shape, words):
    asked = (kernel, *shape, "--batch", "4", "--kv-len", "512")
    code, out, _ = call(capsys, "budget", *asked)
    assert code == 0
    assert words in out
    workload = next(line for line in out.splitlines() if words in line)
    assert "grid   " in out.partition(workload)[2]
    assert "expected, set by" in out.partition(workload)[2]


def test_budget_says_what_a_variant_changes(capsys):
    shape = ("--batch", "64", "--kv-len", "8192", "--heads", "64/8", "--head-dim", "64")
    code, out, _ = call(capsys, "budget", "decode_mma", *shape, "--window", "127", "--sinks")
    table = out.partition("what the variant changes")[2].splitlines()[1:]
    rows = {line[:26].strip(): re.split(r"\s{2,}", line[26:]) for line in table}
    assert code == 0
    assert "64 x 8192, 64/8, d64, page 16, bf16, window 127, sinks" in out
    assert rows["steps of all blocks"] == [f"{64 * 8 * n // 16:,}" for n in (8192, 128)]
    (plain, varied), slopes = rows["bytes to move"], 64 * 4
    assert int(plain.split()[0].replace(",", "")) == Decode((8192,) * 64, 64, 8, 64).bytes
    assert int(varied.split()[0].replace(",", "")) == (
        Decode((128,) * 64, 64, 8, 64).bytes + slopes
    )
    assert {len(pair) for pair in rows.values()} == {2}
    _, out, _ = call(capsys, "budget", "decode_mma", "--alibi")
    assert "grid" not in out.partition("what the variant changes")[2]
    assert "blocks per SM" in out.partition("what the variant changes")[2]


@pytest.mark.parametrize(
    ("kernel", "causal", "window"),
    [("prefill_mma", True, (99, None)), ("backward_mma", False, (9, 9))],
)
def test_steps_of_a_variant_are_those_that_hold_a_key_that_is_seen(kernel, causal, window):
    """A tile of rows or of keys skips the steps in which none of its pairs counts."""
    variant = AttentionVariant(causal, *window)
    kind = operations()[discover()[kernel].operation].workload
    work = kind((200,), (300,), 4, 2, 64, variant=variant)
    spec = discover()[kernel]
    instance = spec.instance(spec.shape(head_dim=64, group=2, variant=variant))
    tile, tokens = instance.tile, np.arange(200)
    seen = np.zeros((200, 300), bool)
    for token in tokens:
        seen[token, variant.begin(token, 200, 300) : variant.end(token, 200, 300)] = True
    packed = seen.repeat(2, axis=0) if kernel == "prefill_mma" else seen
    cells = [
        packed[i : i + tile.q_rows, j : j + tile.keys].any()
        for i in range(0, len(packed), tile.q_rows)
        for j in range(0, 300, tile.keys)
    ]
    assert budget.steps(instance, work) == sum(cells) * (2 if kernel == "prefill_mma" else 4)


def test_budget_compiles_for_another_architecture_or_says_so(capsys):
    code, out, _ = call(capsys, "budget", "decode_fma", "--arch", "sm_120", "--heads", "64/8")
    assert code == 0
    assert "compiled for sm_120" in out
    assert "reported_register_formula" not in out
    if nvrtc.available() is None:
        assert "compiled here by NVRTC" in out


@pytest.mark.skipif(nvrtc.available() is not None, reason="needs cuda.bindings")
def test_budget_says_what_a_thread_has_once_warps_have_traded_registers(capsys):
    code, out, _ = call(capsys, "budget", "prefill_wgmma", "--head-dim", "128")
    assert code == 0
    assert "232 after setmaxnreg has moved registers between warps, at launch 168 by ptxas" in out


RUN = [
    ("decode_mma", "40", ("CPU build, sm_90 arithmetic", "1 x 40, 4/2", "median of 3", "passed")),
    ("prefill_mma", "40 --causal", ("1 x 40 on 1 x 40", "causal", "passed")),
    ("mla_mma", "40", ("4 heads, d512+64", "passed")),
    ("backward_mma", "40", ("bound  worst errors over their bounds: dq", "passed")),
    ("append", "40", ("1 x 1 after 1 x 40", "bit for bit: passed")),
    ("decode_mma", "40 --kv-dtype e4m3", ("page 16, bf16, e4m3 cache", "passed")),
    ("decode_mma", "40 --checks", ("checks races, uninitialised reads",)),
    (
        "decode_fma",
        "40 --window 7 --soft-cap 5 --sinks --alibi",
        ("window 7, soft cap 5", "passed"),
    ),
    ("prefill_mma", "40 --window 7,9 --mask", ("bf16, window 7/9, bit mask", "passed")),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("kernel", "options", "words"), RUN, ids=[" ".join(case[:2]) for case in RUN]
)
def test_run_takes_every_operation_and_says_that_a_cpu_build_is_a_simulation(
    capsys, kernel, options, words
):
    if not next(check for check in doctor.checks() if check.name == "C++ compiler").there:
        pytest.skip("needs a C++ compiler")
    shape = f"--batch 1 --heads 4/2 --kv-len {options}".split()
    code, out, err = call(capsys, "run", kernel, "--cpu", *shape)
    assert (code, err) == (0, "")
    for word in (*words, "of a simulation: it says nothing of a GPU"):
        assert word in out


def test_a_kernel_whose_work_no_workload_counts_is_refused(capsys):
    for command in (["run", "--cpu"], ["budget", "--batch", "1", "--kv-len", "64"]):
        for kernel in ("prefill_wgmma_fp8", "merge_states"):
            assert cli.main([command[0], kernel, *command[1:]]) == 2
            words = f"kernel = '{kernel}', allowed: one of append, backward, decode, mla, prefill\n"
            assert words in capsys.readouterr().err


def test_a_ladder_is_listed_and_a_rung_shown(capsys):
    code, out, _ = call(capsys, "ladder", "decode")
    assert code == 0
    assert [line.split("  ")[0] for line in out.splitlines()[1:]] == [
        rung.name for rung in ladder.rungs("decode")
    ]
    code, out, _ = call(capsys, "ladder", "prefill", "--show", "ping-pong")
    assert code == 0
    assert "+      PingPong<C>::wait(warpgroup);" in out
    code, _, err = call(capsys, "ladder", "prefill", "--show", "no such rung")
    assert code != 0
    assert "allowed: CUDA cores, mma.sync, " in err


def test_scoreboard_lists_every_target(capsys):
    code, out, _ = call(capsys, "scoreboard", "--strict")
    for target in scoreboard.load_targets():
        assert target.id in out
    assert code == int(", 0 NOT MET, 0 not measured" not in out)


def test_a_failed_kernel_makes_code_1(capsys, monkeypatch):
    failed = sweep.Outcome(0, (), ("decode_mma: error is 3 times its bound",))
    monkeypatch.setattr(sweep, "record", lambda experiment, options: failed)
    code, _, err = call(capsys, "record", "compiler_reports", "--commit", "abc1234")
    assert code == 1
    assert "failed: decode_mma: error is 3 times its bound" in err


def test_all_are_recorded_whatever_one_of_them_does(capsys, monkeypatch, tmp_path):
    """Children fail, are killed, refuse or succeed; the failures are repeated at the end."""
    scripts = {
        "counters": "import sys; print('failed: a: 3 times', file=sys.stderr); sys.exit(1)",
        "host_time": "import os; os.kill(os.getpid(), 9)",
        "mla": "raise SystemExit('labkernels: mla needs a GPU: none')",
        "prefill": "print('prefill: 4 rows')",
    }
    began = []

    class Child(subprocess.Popen):
        def __init__(self, command, **how):
            name = command[command.index("record") + 1]
            began.append(name)
            assert command[-6:] == [*asked[3:5], "--scheduler", "", *asked[1:3]]
            super().__init__([sys.executable, "-c", scripts[name]], **how)

    found = experiments.discover()
    monkeypatch.setattr(experiments, "discover", lambda: {name: found[name] for name in scripts})
    monkeypatch.setattr(process.subprocess, "Popen", Child)
    asked = ("--all", "--quick", "--replace", "--commit", "abc1234", "--out", str(tmp_path))
    code, out, err = call(capsys, "record", *asked)
    assert (code, began) == (1, list(scripts))
    assert [line.split()[0] for line in out.splitlines()[:4]] == list(scripts)
    assert err.splitlines()[-3:] == [
        "failed: counters: a: 3 times",
        "failed: host_time: ended by signal 9: no message",
        "failed: mla: mla needs a GPU: none",
    ]


def test_a_reader_that_stops_is_no_error():
    command = f"'{sys.executable}' -m labkernels budget decode_mma --gpu h200 | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("decode_mma for NVIDIA H200")
    assert not done.stderr.replace("labkernels: budget is at work\n", "")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("mla_wgmma", "168 predicted, the limit, 224 after setmaxnreg"),
        ("decode_mma", "168 predicted, the limit (at the edge: ptxas would take 177)"),
        ("backward_mma", "255 predicted, the limit (a few may spill: ptxas would take 323)"),
    ],
)
def test_budget_says_how_near_a_spill_is(capsys, kernel, words):
    assert words in call(capsys, "budget", kernel)[1]


def test_budget_without_a_compiler_says_where_its_numbers_come_from(capsys, monkeypatch):
    monkeypatch.setattr(nvrtc, "available", lambda: "no cuda.bindings")
    code, out, _ = call(capsys, "budget", "decode_mma")
    assert code == 0
    assert re.search(
        r" \d+ by ptxas, \d+ B spilled \(recorded from NVRTC .*no compiler here\)", out
    )
    monkeypatch.setattr(resources, "recorded", lambda instance, arch: None)
    code, out, _ = call(capsys, "budget", "decode_mma")
    assert code == 0
    assert "no compiler here and no recorded report: occupancy is of the prediction" in out
