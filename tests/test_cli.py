import subprocess
import sys

import pytest

from labkernels import cli
from labkernels.cuda import compile as nvrtc
from labkernels.measure import machine
from labkernels.records import scoreboard

COMMANDS = ("budget", "run", "tune", "audit", "record", "scoreboard", "doctor")


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


def test_the_module_runs_without_importing_torch():
    code = "import sys, labkernels.cli as c; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    done = subprocess.run(
        [sys.executable, "-m", "labkernels", "record", "--list"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "decode_tensor_cores" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("budget", "nope"), "kernel = 'nope', allowed: append, decode_fma"),
        (("budget", "decode_mma", "--gpu", "gtx"), "gpu = 'gtx', allowed: a100"),
        (("budget", "decode_mma", "--gpu", "a100", "--arch", "sm_90"), "allowed for gpu = 'a100'"),
        (("budget", "decode_mma", "--tile", "9x9"), "tile = '9x9', allowed for decode_mma"),
        (("budget", "decode_mma", "--head-dim", "96"), "head_dim = 96, allowed for decode_mma"),
        (("budget", "decode_mma", "--group", "17"), "group = 17, allowed: 1 to 16"),
        (("budget", "decode_mma", "--group", "4", "--q-heads", "32"), "allowed: one"),
        (("budget", "decode_mma", "--q-heads", "9"), "q_heads = 9, kv_heads = 8, allowed"),
        (("budget", "decode_mma", "--batch", "4"), "allowed: both or neither"),
        (("run", "nope"), "kernel = 'nope', allowed: decode_fma"),
        (("run", "decode_fma", "--tensor-cores", "on"), "tensor_cores = 'on', allowed for"),
        (("run", "decode_fma", "--repeats", "1"), "repeats = 1, allowed: 2 or more"),
        (("run", "decode_fma", "--kv-len", "-1"), "-1"),
        (("tune", "decode_mma"), "kernel = 'decode_mma', allowed: prefill_mma"),
        (("tune", "prefill_mma", "--head-dim", "96", "--no-gpu"), "head_dim = 96, allowed for"),
        (("tune", "prefill_mma", "--top", "-1"), "top = -1, allowed: 0 or more"),
        (("tune", "prefill_mma", "--no-gpu", "--gpu", "gtx"), "gpu = 'gtx', allowed: a100"),
        (("tune", "prefill_mma", "--no-gpu", "--batch", "0"), "q_lens"),
        (("audit", "/no/such.npz"), "/no/such.npz: no such file"),
        (("record",), "experiment is missing; allowed: backward"),
        (("record", "nope", "--commit", "a"), "experiment is 'nope'; allowed: backward"),
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
        "blocks on an SM",
        "x 108 blocks",
    ):
        assert words in out


def test_budget_compiles_for_another_architecture_or_says_so(capsys):
    code, out, _ = call(capsys, "budget", "decode_fma", "--arch", "sm_120", "--group", "8")
    assert code == 0
    assert "compiled for sm_120" in out
    assert "reported_register_formula" not in out
    if nvrtc.available() is None:
        assert "compiled here by NVRTC" in out


@pytest.mark.skipif(nvrtc.available() is not None, reason="needs cuda.core")
def test_budget_says_what_a_thread_has_once_warps_have_traded_registers(capsys):
    code, out, _ = call(capsys, "budget", "prefill_wgmma", "--head-dim", "128")
    assert code == 0
    assert "232 once warps have traded theirs, at launch 168 by ptxas" in out


def test_budget_without_a_compiler_says_where_its_numbers_come_from(capsys, monkeypatch):
    monkeypatch.setattr(nvrtc, "available", lambda: "no cuda.core")
    code, out, _ = call(capsys, "budget", "decode_mma")
    assert code == 0
    assert "there is no compiler here" in out or "no compiler here and no recorded report" in out


def test_run_prints_time_error_and_machine(capsys):
    pytest.importorskip("torch")
    if not next(check for check in machine.checks() if check.name == "C++ compiler").there:
        pytest.skip("needs a C++ compiler")
    shape = ("--batch", "1", "--kv-len", "40", "--q-heads", "4", "--kv-heads", "2")
    code, out, err = call(capsys, "run", "decode_mma", "--cpu", *shape, "--dtype", "fp16")
    assert (code, err) == (0, "")
    for words in ("CPU build, sm_90 arithmetic", "1 x 40, 4/2", "median of 3", "passed"):
        assert words in out


def test_scoreboard_lists_every_target(capsys):
    code, out, _ = call(capsys, "scoreboard")
    assert code == 0
    for target in scoreboard.load_targets():
        assert target.id in out
    strict, _, _ = call(capsys, "scoreboard", "--strict")
    unmet = any(score.status != scoreboard.MET for score in scoreboard.scoreboard())
    assert strict == int(unmet)


def test_record_describes_a_folder(capsys, tmp_path):
    (tmp_path / "targets.toml").write_text("")
    code, out, _ = call(capsys, "record", "--describe", "--out", str(tmp_path))
    assert (code, out.strip()) == (0, str(tmp_path / "datapackage.json"))


def test_a_failed_kernel_makes_code_1(capsys, monkeypatch):
    from labkernels import experiments

    class Failing:
        TITLE = "fails"

        @staticmethod
        def run(options):
            return experiments.Outcome(0, (), ("decode_mma: error is 3 times its bound",))

    monkeypatch.setattr(experiments, "find", lambda name: Failing)
    code, _, err = call(capsys, "record", "anything", "--commit", "abc1234")
    assert code == 1
    assert "failed: decode_mma: error is 3 times its bound" in err


def test_doctor_says_what_runs_and_why_not_more(capsys):
    code, out, _ = call(capsys, "doctor")
    found = machine.checks()
    assert code == (0 if machine.works(found) else 1)
    assert "This machine has" in out
    assert "This machine can" in out
    for check in found:
        assert check.detail
