"""Without a GPU, the bench runs small workloads, and fills its tables, figures and log."""

import dataclasses
import html
import json
import re
from types import SimpleNamespace

import matplotlib as mpl
import nbformat
import numpy as np
import pytest

from labkernels import Backward, Bench, Decode, MlaDecode, Prefill, hardware
from labkernels.bench import (
    elements,
    small,
    source,
    times,
)
from labkernels.bench.log import MIME, Log
from labkernels.budget.occupancy import occupancy
from labkernels.cuda.gpu import device
from labkernels.kernels.append.workload import Append
from labkernels.variant import FULL, AttentionVariant
from tests.bench.logs import log_of, missing

mpl.use("Agg")

DECODE = Decode.uniform(57, 8192, q_heads=32, kv_heads=8, dtype="fp16")
TINY = Decode((17,), 4, 1, 128)
WINDOW = AttentionVariant(window_left=1023, soft_cap=50.0, sinks=True)
PREFILL_WINDOW = Prefill(
    (2048,) * 8,
    (2048,) * 8,
    16,
    16,
    128,
    variant=AttentionVariant(causal=True, window_left=1023, alibi=True),
)
PREFILL = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True)


@pytest.fixture(scope="module")
def bench():
    made = Bench(DECODE, PREFILL)
    made.run()
    return made


def test_every_kernel_and_the_reference_run_in_both_ways(bench):
    live = bench.times().query("kind == @times.SIMULATION")
    ways = set(zip(live.operation, live.language, live.tensor_cores, strict=True))
    decode, prefill = bench.here
    assert (decode.group, decode.head_dim, decode.dtype) == (4, 128, "fp16")
    assert (prefill.group, prefill.head_dim, prefill.causal) == (1, 128, True)
    for operation in ("decode", "prefill"):
        for language in ("cuda", "triton"):
            assert {(operation, language, "on"), (operation, language, "off")} <= ways
        assert (operation, "torch", "off") in ways


@pytest.mark.parametrize(
    "workload",
    [
        Decode((9, 0, 5000, 100), 6, 3, 64),
        Decode((0, 0), 6, 3, 64, variant=WINDOW),
        Prefill((10, 700), (4000, 700), 8, 2, 64),
        MlaDecode((4096,) * 64, 128, q_len=2),
        Backward((4096,) * 4, (4096,) * 4, 16, 16, 128),
    ],
    ids=lambda workload: type(workload).__name__,
)
def test_small_keeps_kind_and_proportions(workload):
    cut = small.small(workload)
    assert type(cut) is type(workload)
    assert cut.batch <= small.REQUESTS
    assert max(cut.kv_lens) <= small.KEYS
    assert cut.dtype == workload.dtype
    assert getattr(cut, "q_len", 1) == getattr(workload, "q_len", 1)
    if hasattr(workload, "kv_heads"):
        assert cut.group == workload.group
    assert small.small(cut) == cut


def test_a_windowed_workload_is_computed_counted_and_has_no_plain_times():
    """A small workload's window hides as many keys in proportion; plain times are not its own."""
    whole = Decode.uniform(64, 8192, q_heads=32, kv_heads=8, variant=WINDOW)
    bench = Bench(whole, PREFILL_WINDOW, kernels=["decode_mma", "prefill_mma"])
    assert [w.variant.window_left for w in bench.here] == [24, 20]
    bench.run()
    assert set(bench.errors().kernel) == {"decode_mma", "prefill_mma"}
    assert (bench.errors().bound_ratio <= 1).all()
    assert set(bench.times().kind) == {times.SIMULATION}
    plain = Bench(dataclasses.replace(whole, variant=FULL), kernels=["decode_mma"]).floors()
    window, full = (floors.least_ms[0] for floors in (bench.floors(), plain))
    assert window * 7 < full < window * 8
    terms = bench.budgets().query("kind == 'predicted'").groupby("operation").term.unique()
    assert "slopes" in terms["prefill"]
    assert "slopes" not in terms["decode"]


def test_errors_are_those_of_each_request_and_head(bench):
    errors = bench.errors()
    decode = errors[(errors.operation == "decode") & (errors.kernel == "decode_mma")]
    assert len(decode) == bench.here[0].batch * bench.here[0].q_heads
    elements = bench.elements().query("kernel == 'decode_mma' and sample == 1 and head == 3")
    row = decode[(decode["sample"] == 1) & (decode["head"] == 3)].iloc[0]
    assert row.rmse == pytest.approx(np.sqrt(np.mean(elements.error**2)))
    assert row.bound_ratio == elements.ratio.max()
    assert (errors.bound_ratio <= 1).all()
    fma, mma = (errors[errors.kernel == k].rmse.mean() for k in ("decode_fma", "decode_mma"))
    assert fma < mma, "without tensor cores P is not rounded"
    with pytest.raises(ValueError, match="operation = 'mla', allowed: decode, prefill"):
        bench.plot_errors("mla")


def test_recorded_times_are_of_the_whole_workload_with_where_and_when(bench):
    recorded = bench.times().query("kind == 'recorded'")
    assert {"decode_mma", "flashinfer_fa2", "prefill_wgmma", "torch_cudnn"} <= set(recorded.kernel)
    assert set(recorded.workload) == {DECODE.label, PREFILL.label}
    assert recorded.origin.str.contains("commit").all()
    assert (recorded.q25_ms <= recorded.time_ms).all()
    floors = bench.floors().set_index(["operation", "tensor_cores"])
    assert floors.loc[("decode", "on"), "bound"] == "memory"
    least = recorded.operation.map(lambda operation: floors.least_ms[operation, "on"])
    assert (recorded.time_ms > 0.95 * least).all()


def test_budget_terms_add_up_to_the_ledger_and_the_compiler_agrees_on_bytes(bench):
    rows = bench.budgets()
    counted = rows[rows.counts].groupby(["kernel", "resource"]).value.sum()
    made = rows[rows.kind == "compiled"].drop_duplicates(["kernel", "resource"])
    for row in made.itertuples():
        if "bytes" in row.resource:
            assert counted[row.kernel, row.resource] == row.value
    assert len(made) >= 14


def test_a_gpu_that_lacks_a_kernel_says_why(bench):
    table = bench.occupancy("h200", "a100").set_index(["gpu", "kernel"])
    there, lacking = table.loc[("h200", "prefill_wgmma")], table.loc[("a100", "prefill_wgmma")]
    assert there.blocks_per_sm == 1
    assert there.limit in ("registers", "shared memory")
    assert np.isnan(lacking.blocks_per_sm)
    assert "sm_90a" in lacking.note
    assert table.loc[("h200", "triton_decode")].note.str.contains("triton allocates").all()


def test_the_formulas_are_tables_whose_terms_add_up_to_the_compilers_number(bench):
    made = bench.equations("decode_mma")
    smem = made.tables["shared memory per block"]
    counted = [
        int(value.removesuffix(" B").replace(",", ""))
        for *_, value in smem[:-2]
        if "[" not in value
    ]
    assert f"{sum(counted):,} B" == smem[-2][2] == smem[-1][2] == "53,248 B"
    assert made.tables["blocks per SM"][-1][2] == "3"
    assert "16 rows × 128 channels × 2 B" in made._repr_html_()
    with pytest.raises(ValueError, match="allowed: reference, decode_fma"):
        bench.equations("decode_mna")
    with pytest.raises(ValueError, match="triton allocates"):
        bench.equations("triton_decode")


def test_one_block_more_fits_with_what_the_table_says_and_not_with_a_register_more(bench):
    row = bench.occupancy("h200").set_index("kernel").loc["decode_mma"]
    most = int(re.match(r"(\d+) registers", row.one_more)[1])
    h200, given = hardware.gpu("h200"), {"threads": 128, "smem_bytes": 0}
    assert occupancy(h200, registers=most, **given).blocks_per_sm == row.blocks_per_sm + 1
    assert occupancy(h200, registers=most + 1, **given).blocks_per_sm == row.blocks_per_sm


def test_figures_are_drawn_and_logged_and_a_notebook_keeps_the_log(bench):
    before = Log(list(bench.log.runs))
    assert "the figure of budget" in missing(before)
    for figure in (bench.plot_budget(), bench.plot_timing(), bench.plot_occupancy("h200", "a100")):
        figure.canvas.draw()
    bench.plot_errors("decode").canvas.draw()
    bench.equations("decode_fma")
    assert missing(bench.log) == []
    data = bench.log._repr_mimebundle_()
    output = nbformat.v4.new_output("display_data", data=json.loads(json.dumps(data)))
    cell = nbformat.v4.new_code_cell(outputs=[output])
    kept = log_of(nbformat.v4.new_notebook(cells=[cell]))
    assert kept == bench.log
    assert MIME in data


def test_a_kernel_that_fails_stays_with_its_reason(monkeypatch):
    def broken(inputs, **more):
        raise RuntimeError("no compiler here")

    tiny = Bench(TINY, kernels=["decode_fma", "decode_mma"])
    wrong = next(item for item in tiny._items["decode"] if item.name == "decode_fma")
    monkeypatch.setitem(vars(wrong), "prepare", broken)
    row = tiny.run().set_index("kernel").loc["decode_fma"]
    assert (row.kind, row.note) == ("failed", "no compiler here")
    assert {run["kernel"] for run in tiny.log.runs} == {"decode_mma"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bench(DECODE, kernels=["decode_x"]), r"= \['decode_x'\], allowed: .*decode_mma"),
        (lambda: Bench("decode"), "allowed: one of"),
        (lambda: Bench(Append((64,), (1,), 2, 128)), "workload = Append.*allowed: one of"),
        (lambda: Bench(), r"workloads = \(\), allowed: one or more of .*Decode"),
        (lambda: Bench(DECODE, PREFILL, TINY), "workloads = 2 of Decode, allowed: one"),
        (lambda: Bench(DECODE).errors(), r"allowed: those of a bench after run\(\)"),
        (lambda: Bench(DECODE).elements(), r"allowed: those of a bench after run\(\)"),
        (lambda: Bench(DECODE).plot_errors(), r"allowed: those of a bench after run\(\)"),
    ],
)
def test_what_no_bench_can_do_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("draw", [Bench.plot_budget, Bench.plot_occupancy])
def test_a_figure_without_a_ledger_says_why(draw):
    with pytest.raises(ValueError, match="on t4, allowed: one with a ledger; .*sm_80 or newer"):
        draw(Bench(DECODE, kernels=["decode_fma", "decode_mma"], gpu="t4"))
    with pytest.raises(ValueError, match="on h200, allowed: one with a ledger; triton allocates"):
        draw(Bench(DECODE, kernels="triton_decode"))


def test_a_bench_says_what_it_holds_and_whether_it_ran():
    for kernels in ("decode_fma", ["decode_fma"], iter(["decode_fma"])):
        tiny = Bench(TINY, kernels=kernels)
        assert list(tiny.occupancy().kernel) == ["decode_fma"]
    assert DECODE.label in repr(Bench(DECODE))
    assert repr(tiny).endswith("not run yet")
    tiny.run()
    assert repr(tiny).endswith("ran: decode")


def test_a_gpu_that_is_too_old_gets_the_cpu_build_and_a_sentence(monkeypatch, capsys):
    tiny = Bench(TINY, kernels="decode_fma")
    tiny.run()
    assert capsys.readouterr().out == ""
    old = SimpleNamespace(name="Tesla T4", arch="sm_75")
    monkeypatch.setattr(device, "_read", lambda index: old)
    here = Bench(TINY, kernels="decode_fma")
    assert here.run().origin.tolist() == ["computed on CPU build, sm_90 arithmetic"]
    said = capsys.readouterr().out
    assert said.startswith("Tesla T4 is sm_75; the kernels need sm_80 or newer")
    assert said.endswith("use the CPU build, as this bench does.\n")


def test_listings_come_from_the_real_source_in_colours():
    shown = source("decode_mma", "scores")
    assert "mma" in str(shown)
    assert not str(shown).startswith(" ")
    page = shown._repr_html_()
    assert '<span class="k">for</span>' in page
    said = html.unescape(re.sub(r"<[^>]+>", "", page))
    assert said.split("\n", 1)[1].strip() == str(shown).strip(), "every character is there"
    assert "@triton.jit" in str(source("triton_decode", "decode"))
    with pytest.raises(ValueError, match="part = 'score', allowed for decode_mma: scores"):
        source("decode_mma", "score")


def test_each_element_has_its_request_by_the_lengths_and_its_head():
    error = np.arange(3 * 2 * 4, dtype=float).reshape(3, 2, 4)
    rows = elements.rows({"mine": error}, [1, 2])
    assert rows["sample"].tolist() == [0] * 8 + [1] * 16
    assert rows["head"].tolist() == ([0] * 4 + [1] * 4) * 3
    assert rows.error.tolist() == list(range(24))
    assert set(rows.way) == {"mine"}


def test_errors_are_those_against_float64():
    work = Prefill((9, 4), (9, 4), 2, 2, 64)
    ways = {"off": {"kernel": "prefill_fma"}, "exact again": {"kernel": "reference_prefill"}}
    found = elements.errors("prefill", work, ways)
    worst = found.groupby("way").error.agg(lambda error: error.abs().max())
    assert worst["exact again"] == 0
    assert 0 < worst["off"] < 0.05
