"""The command `labkernels`: budget, run, tune, audit, record, scoreboard, doctor."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DONE, FAILED, USAGE = 0, 1, 2
DEFAULT_GROUP = 4
TUNED_CHANNELS = 2048  # heads x head_dim, as in FlashAttention's papers

_TOP = """Attention kernels whose registers, shared memory, time and rounding errors are predicted
before they are measured.

examples:
  labkernels doctor                                     what can this machine run, and why not more
  labkernels budget decode_mma --head-dim 128           where its bytes and registers go
  labkernels run decode_fma --batch 4 --kv-len 2048     run it here and compare with float64
  labkernels tune prefill_mma --no-gpu                  which tiles are worth a run
  labkernels audit dump.npz                             is this output rounding, or a bug
  labkernels record decode_tensor_cores                 measure on a GPU, write data/
  labkernels scoreboard                                 targets beside what was measured

exit codes: 0 done; 1 something was found wrong (a kernel off its bound, a target not met with
--strict, a machine that runs no kernel); 2 the request itself was wrong, said in one line.
"""

_BUDGET = """Show what a CUDA kernel takes: every line of shared memory and registers, what the
compiler says, the blocks that an SM holds, and, for a workload, its grid and waves. Needs no GPU.

examples:
  labkernels budget decode_mma --head-dim 128 --gpu h200
  labkernels budget decode_fma --group 8 --arch sm_80   compile for another architecture
  labkernels budget decode_mma --batch 57 --kv-len 8192 with grid, waves and expected time
  labkernels budget decode_mma --tile 4x32x2x1          another tile; a wrong one lists them all
"""

_RUN = """Run a decode kernel on random inputs, on this machine's GPU or as its CPU build, and
compare it with float64.

examples:
  labkernels run decode_mma --batch 4 --kv-len 2048
  labkernels run decode_fma --q-heads 64 --dtype fp16
  labkernels run triton_decode --tensor-cores off --kv-len 64
  labkernels run decode_mma --cpu --checks              with races and uninitialised reads reported
"""

_TUNE = """Search a prefill kernel's tiles for a workload, of more tiles than the kernel lists.

The ledger rejects what cannot fit, and says with which line it broke; the compiler rejects spilled
registers and wgmma that cannot overlap; a model of products, exponentials, shared memory and whole
rounds of blocks orders what is left; the GPU measures the first few. All but the last needs no GPU.

examples:
  labkernels tune prefill_mma --head-dim 128            measure the model's best eight
  labkernels tune prefill_mma --no-gpu                  stop before the measuring
  labkernels tune prefill_mma --no-gpu --gpu a100       for another GPU
  labkernels tune prefill_mma --causal --seqlen 512 --batch 32 --top 20
"""

_AUDIT = """Say of saved tensors whether the output differs from float64 by rounding or by a bug.

The file, .npz or .safetensors, holds
  q, out   [B, Hq, D], one query a request; [B, Hq, M, D]; or [total_q, Hq, D] and cu_seqlens_q
           [B + 1]. out may have another D, that of v
  k, v     [B, Hkv, L, D], and kv_len [B] where lengths differ; [total, Hkv, D] and cu_seqlens
           [B + 1]; or pools [pages, page_size, Hkv, D], page_table and kv_len
  causal   optional, one number: unless it is 0, a request's last query sees all of its keys and
           each query before it one key less
  lse2     optional, in base 2, shaped as q without D
  scale    optional, one number; by default 1 / sqrt(D)
In an npz, uint16 holds the bits of bf16.

examples:
  labkernels audit dump.npz                             the verdict and every test behind it
  labkernels audit dump.npz --html report.html          the same as a page with figures
  labkernels audit dump.npz --p-format fp32             a kernel that keeps P in fp32

exit codes: 0 rounding; 1 bug; 2 inconclusive, or a file that cannot be judged, said in one line.
"""

_RECORD = """Measure an experiment and write its rows, with their provenance, to data/.

examples:
  labkernels record --list                              the experiments there are
  labkernels record decode_tensor_cores                 about 8 minutes on one H200
  labkernels record --all --replace                     all of them, in fresh files
  labkernels record decode_tensor_cores --only 'decode_mma/1 x 131072' --out /tmp/rows
  labkernels record decode_tensor_cores --quick --out /tmp/rows
  labkernels record --describe                          refresh data/datapackage.json alone
"""

_SCOREBOARD = """Hold data/targets.toml against the newest recorded rows. A ratio is peer time over
our time within one run; larger is better.

examples:
  labkernels scoreboard
  labkernels scoreboard --strict                        exit code 1 unless all targets are met
"""

_DOCTOR = """Say what this machine can run and what it cannot, and why: compiler, vector unit,
torch, Triton, NVRTC, GPU, hardware table against the driver, recorded runs.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a wrong request is one line on stderr."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except (ValueError, FileNotFoundError) as error:
        return _complain(error, USAGE)
    except RuntimeError as error:
        # A compiler or a kernel that failed; its text says what and where.
        return _complain(error, FAILED)


def _complain(error: Exception, code: int) -> int:
    print(f"labkernels: {error}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="labkernels", description=_TOP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, help_text, description, fill, command in (
        ("budget", "where a kernel's bytes and registers go", _BUDGET, _budget_options, _budget),
        ("run", "run a kernel here and compare with float64", _RUN, _run_options, _run),
        ("tune", "search a kernel's best tile", _TUNE, _tune_options, _tune),
        ("audit", "rounding or bug, for saved tensors", _AUDIT, _audit_options, _audit),
        ("record", "measure an experiment on a GPU", _RECORD, _record_options, _record),
        ("scoreboard", "targets beside measurements", _SCOREBOARD, _board_options, _scoreboard),
        ("doctor", "what this machine can run", _DOCTOR, lambda sub: None, _doctor),
    ):
        sub = commands.add_parser(
            name,
            help=help_text,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        fill(sub)
        sub.set_defaults(command=command)
    return parser


def _shape_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("kernel", help="a kernel folder's name, such as decode_mma")
    sub.add_argument("--head-dim", type=int, default=128, help="elements a head (default 128)")
    sub.add_argument("--dtype", default="bf16", help="fp16 or bf16 (default bf16)")
    sub.add_argument("--tile", default="", help="tile option; default: the preferred one")
    sub.add_argument("--kv-heads", type=int, default=8, help="key/value heads (default 8)")
    sub.add_argument("--page-size", type=int, default=16, help="keys a page (default 16)")


def _budget_options(sub: argparse.ArgumentParser) -> None:
    _shape_options(sub)
    sub.add_argument("--gpu", default="", help="h200, a100, ... (default h200, or one of --arch)")
    sub.add_argument("--arch", default="", help="architecture to compile for, such as sm_80")
    sub.add_argument("--group", type=int, default=0, help="query heads a KV head (default 4)")
    sub.add_argument("--q-heads", type=int, default=0, help="query heads, in place of --group")
    sub.add_argument("--batch", type=int, default=0, help="requests, for grid and waves")
    sub.add_argument("--kv-len", type=int, default=0, help="keys a request, with --batch")


def _run_options(sub: argparse.ArgumentParser) -> None:
    _shape_options(sub)
    sub.add_argument("--batch", type=int, default=4, help="requests (default 4)")
    sub.add_argument("--kv-len", type=int, default=2048, help="keys a request (default 2048)")
    sub.add_argument("--q-heads", type=int, default=32, help="query heads (default 32)")
    sub.add_argument("--tensor-cores", default="", help="on or off, where a kernel has both")
    sub.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    sub.add_argument("--repeats", type=int, default=3, help="timed repeats (default 3)")
    sub.add_argument("--cpu", action="store_true", help="the CPU build, even if there is a GPU")
    sub.add_argument("--checks", action="store_true", help="CPU build with its race checker on")


def _tune_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("kernel", help="a kernel that lists its tiles, such as prefill_mma")
    sub.add_argument("--head-dim", type=int, default=128, help="elements a head (default 128)")
    sub.add_argument("--dtype", default="bf16", help="fp16 or bf16 (default bf16)")
    sub.add_argument("--batch", type=int, default=4, help="requests (default 4)")
    sub.add_argument("--seqlen", type=int, default=4096, help="tokens a request (default 4096)")
    sub.add_argument("--q-heads", type=int, default=0, help="query heads (default: 2048 channels)")
    sub.add_argument("--kv-heads", type=int, default=0, help="key/value heads (default: as many)")
    sub.add_argument("--page-size", type=int, default=0, help="keys a page (default 0: ragged)")
    sub.add_argument("--causal", action="store_true", help="each token sees the keys up to its own")
    sub.add_argument("--top", type=int, default=8, help="tiles to measure (default 8)")
    sub.add_argument("--no-gpu", action="store_true", help="stop before the measuring")
    sub.add_argument("--gpu", default="", help="with --no-gpu: h200, a100, ... (default h200)")
    sub.add_argument("--repeats", type=int, default=10, help="timed repeats (default 10)")
    sub.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")


def _audit_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", type=Path, help="an .npz or .safetensors file")
    sub.add_argument("--html", type=Path, default=None, help="write a page with figures here")
    sub.add_argument("--scale", type=float, default=None, help="default 1 / sqrt(head_dim)")
    sub.add_argument(
        "--p-format", default=None, help="fp32, fp16, bf16, fp16x2, bf16x2 (default: q's)"
    )


def _record_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("experiment", nargs="?", default="", help="name of one experiment")
    sub.add_argument("--all", action="store_true", help="every experiment")
    sub.add_argument("--list", action="store_true", help="name the experiments and stop")
    sub.add_argument("--describe", action="store_true", help="refresh datapackage.json and stop")
    sub.add_argument("--only", default="", help="measure only what holds this KERNEL/WORKLOAD text")
    sub.add_argument("--repeats", type=int, default=50, help="timed repeats (default 50)")
    sub.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    sub.add_argument("--out", type=Path, default=None, help="folder to write to (default data/)")
    sub.add_argument("--quick", action="store_true", help="tiny workloads, to try the command")
    sub.add_argument("--replace", action="store_true", help="begin the data file again")
    sub.add_argument("--commit", default="", help="commit of the source, where there is no git")
    sub.add_argument(
        "--peer-path", type=Path, default=None, help="Triton's tutorial 06-fused-attention.py"
    )


def _board_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--data", type=Path, default=None, help="folder of rows (default data/)")
    sub.add_argument("--strict", action="store_true", help="exit code 1 unless all are met")


def _budget(options: argparse.Namespace) -> int:
    from labkernels.measure import budget_report

    group = _group(options)
    described = budget_report.report(
        options.kernel,
        head_dim=options.head_dim,
        dtype=options.dtype,
        group=group,
        tile=options.tile,
        gpu=options.gpu,
        arch=options.arch,
        workload=_workload(options, q_heads=group * options.kv_heads) if options.kv_len else None,
    )
    print(described)
    return DONE


def _group(options: argparse.Namespace) -> int:
    if options.group and options.q_heads:
        raise ValueError(f"group = {options.group} and q_heads = {options.q_heads}, allowed: one")
    if bool(options.batch) != bool(options.kv_len):
        raise ValueError(
            f"batch = {options.batch} and kv_len = {options.kv_len}, allowed: both or neither"
        )
    if options.kv_heads < 1 or options.q_heads % options.kv_heads:
        raise ValueError(
            f"q_heads = {options.q_heads}, kv_heads = {options.kv_heads}, allowed: a multiple of it"
        )
    return options.group or options.q_heads // options.kv_heads or DEFAULT_GROUP


def _workload(options: argparse.Namespace, *, q_heads: int):
    from labkernels.workload import Decode

    return Decode.uniform(
        options.batch,
        options.kv_len,
        q_heads=q_heads,
        kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        page_size=options.page_size,
        dtype=options.dtype,
    )


def _run(options: argparse.Namespace) -> int:
    from labkernels.measure import trial

    result = trial.run(
        options.kernel,
        _workload(options, q_heads=options.q_heads),
        tile=options.tile,
        tensor_cores=options.tensor_cores,
        seed=options.seed,
        repeats=options.repeats,
        cpu=options.cpu or options.checks,
        checks=options.checks,
    )
    print(result.text)
    return DONE if result.passed else FAILED


def _tune(options: argparse.Namespace) -> int:
    from labkernels.measure import tune_report
    from labkernels.workload import Prefill

    heads = options.q_heads or max(1, TUNED_CHANNELS // max(1, options.head_dim))
    lengths = (options.seqlen,) * options.batch
    workload = Prefill(
        lengths,
        lengths,
        heads,
        options.kv_heads or heads,
        options.head_dim,
        causal=options.causal,
        dtype=options.dtype,
        page_size=options.page_size or None,
    )
    found = tune_report.tune(
        options.kernel,
        workload,
        gpu=options.gpu,
        top=0 if options.no_gpu else options.top,
        repeats=options.repeats,
        seed=options.seed,
        say=lambda line: print(line, flush=True),
    )
    print(f"\n{found}")
    return DONE


def _audit(options: argparse.Namespace) -> int:
    from labkernels.measure.audit import audit

    found = audit(options.file, scale=options.scale, p_format=options.p_format)
    print(found.summary())
    if options.html is not None:
        from labkernels import plots

        page = plots.verdict_page(found, origin=f"computed on this machine from {options.file}")
        options.html.write_text(page, encoding="utf-8")
        print(f"report: {options.html}")
    return {"ROUNDING": DONE, "BUG": FAILED}.get(found.answer, USAGE)


def _record(options: argparse.Namespace) -> int:
    from labkernels import experiments
    from labkernels.records import datapackage, provenance, store

    out = store.DATA_DIR if options.out is None else options.out
    if options.describe:
        print(datapackage.write(out))
        return DONE
    found = experiments.discover()
    if options.list:
        for name, module in found.items():
            print(f"{name:<24}{module.TITLE}")
        return DONE
    if bool(options.experiment) == options.all:
        raise ValueError(f"experiment is missing; allowed: {', '.join(found)}, or --all")
    chosen = list(found) if options.all else [options.experiment]
    # Said before minutes of measuring, not after.
    provenance.source_state(options.commit)
    asked = experiments.Options(
        out=out,
        repeats=options.repeats,
        seed=options.seed,
        quick=options.quick,
        only=options.only,
        replace=options.replace,
        commit=options.commit,
        peer_path=options.peer_path,
        say=lambda line: print(line, flush=True),
    )
    return max(_record_one(name, asked) for name in chosen)


def _record_one(name: str, asked) -> int:
    from labkernels import experiments

    outcome = experiments.find(name).run(asked)
    print(f"{name}: {outcome.rows} rows in {', '.join(str(path) for path in outcome.files)}")
    for failure in outcome.failures:
        print(f"failed: {failure}", file=sys.stderr)
    return FAILED if outcome.failures else DONE


def _scoreboard(options: argparse.Namespace) -> int:
    from labkernels.records import scoreboard

    scores = scoreboard.scoreboard(data_dir=options.data)
    print(scoreboard.table(scores))
    unmet = any(score.status != scoreboard.MET for score in scores)
    return FAILED if options.strict and unmet else DONE


def _doctor(options: argparse.Namespace) -> int:
    from labkernels.measure import machine

    del options  # it takes none
    found = machine.checks()
    print(machine.text(found))
    return DONE if machine.works(found) else FAILED
