"""MLA decode with tensor cores on and off: our kernels beside FlashInfer's two generations."""

from collections.abc import Iterator
from datetime import UTC, datetime

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments._mla_cell import contenders, measure_cell
from labkernels.experiments._mla_rows import rows_of
from labkernels.experiments._prefill_cell import CellResult
from labkernels.measure import device, mla_peers
from labkernels.records import datapackage, provenance, schema, store
from labkernels.units import format_time
from labkernels.workload import MlaDecode

NAME = "mla"
TITLE = "MLA decode, tensor cores on and off, beside FlashInfer's fa2 and fa3"
DATA_FILE = "mla.csv"

SPEED = ((64, 4096, 128), (128, 8192, 16), (16, 32768, 128))  # requests, keys, heads
HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
SWEEP = (64, 4096)  # requests and keys of the sweep over heads
PAGE_SIZES = (1, 16, 64)
PEER_DTYPE = "bf16"  # another costs two more builds of FlashInfer, minutes that no target asks for
# Times this, the lengths of a ragged batch; their mean is 1.
SKEWED = (3.3, 1.6, 1.0, 0.7, 0.5, 0.4, 0.3, 0.2)


def grid(*, quick: bool = False) -> Iterator[tuple[MlaDecode, str]]:
    """Yield each workload and why it is there; `quick` keeps their kinds, at few keys."""
    short = 16 if quick else 1
    for batch, keys, heads in SPEED:
        for dtype in ("bf16", "fp16"):
            yield MlaDecode((keys // short,) * batch, heads, dtype=dtype), "speed"
    batch, keys = SWEEP
    for q_len in (1, 2):
        for heads in HEADS[::4] if quick else HEADS:
            yield MlaDecode((keys // short,) * batch, heads, q_len=q_len), f"heads, {q_len} tokens"
    for page_size in PAGE_SIZES:
        yield MlaDecode((keys // short,) * batch, 16, page_size=page_size), f"page {page_size}"
    lengths = [int(keys * share) // short for share in SKEWED] * (batch // len(SKEWED))
    yield MlaDecode(lengths, 128), "ragged lengths"


def run(options: Options) -> Outcome:
    """Measure the grid on this machine's GPU and write the data file as it goes.

    Raises: ValueError if there is no GPU, no commit, nothing to measure, or a quick run would
    write among the committed data.
    """
    from labkernels.cuda import device as cuda_device

    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/ and quick is on; allowed: --quick with --out FOLDER")
    cells = [(w, why) for w, why in grid(quick=options.quick) if options.only in label_of(w, why)]
    if not cells:
        raise ValueError(f"only is {options.only!r} and matches nothing; allowed: '128 heads'")
    reason = cuda_device.available()
    if reason:
        raise ValueError(f"{NAME} needs a GPU: {reason}")
    started, commit, facts = datetime.now(UTC), commit_text(options), device.facts()
    options.progress(f"{facts['gpu']}, {len(cells)} workloads, commit {commit}")
    built = mla_peers.build_flashinfer(PEER_DTYPE)
    path, failures, total, fresh = options.out / DATA_FILE, [], 0, options.replace
    for workload, why in cells:
        reason = built if workload.dtype == PEER_DTYPE else f"built for {PEER_DTYPE} alone"
        chosen = contenders({"flashinfer": reason} if reason else {})
        result = measure_cell(workload, chosen, repeats=options.repeats, seed=options.seed)
        origin = provenance.collect(
            {**facts, **result.sensors},
            seed=options.seed,
            repeats=options.repeats,
            commit=commit,
            started=started,
        )
        rows = [origin | row for row in rows_of(NAME, workload, result)]
        put = store.replace if fresh else store.append
        total, fresh = total + put(path, rows, schema.PREFILL_MEASUREMENTS), False
        failures += [
            f"{contender.name} on {workload.label}: {words}"
            for contender, metric, words in result.words
            if metric == "failed" and contender.backend in ("cuda", "triton")
        ]
        options.progress(_line(workload, why, result))
        del result
        _free()
    datapackage.write(options.out)
    return Outcome(total, (path,), tuple(failures))


def label_of(workload: MlaDecode, why: str) -> str:
    """Return what `--only` is looked for in."""
    return f"{workload.label} ({why})"


def _line(workload: MlaDecode, why: str, result: CellResult) -> str:
    words = [f"{contender.name} {metric}" for contender, metric, _ in result.words]
    for item in result.measured:
        median_s = item.times.median_s
        rates = f"{workload.flops / median_s / 1e12:.0f} TFLOP/s"
        words.append(f"{item.ready.contender.name} {format_time(median_s)} {rates}")
    return f"{label_of(workload, why)}: " + ", ".join(words)


def _free() -> None:
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()
