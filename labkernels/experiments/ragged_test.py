"""FlashInfer's ragged bf16 test on our kernels: its errors, and which bugs it can see."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments import _ragged_runs as runs
from labkernels.experiments._detection_runs import DTYPES, Cell
from labkernels.experiments._ragged_runs import Task
from labkernels.experiments._workers import all_cores
from labkernels.experiments.detection import CPU, count
from labkernels.kernels.spec import KernelSpec, discover
from labkernels.measure import accuracy, device
from labkernels.measure.ragged_test import INPUTS, RaggedTest, draw
from labkernels.numerics import metrics, oracle, rounding
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row

NAME = "ragged_test"
TITLE = "The ragged prefill test: errors of right kernels, and the bugs that it can see"
DATA_FILE = "ragged_test.csv"
DETECTION_FILE = "ragged_test_detection.csv"
SEEDS = 2
LENGTHS = (17, 65, 257, 1025, 4097, 8193)  # of the error against length: a key past each tile
LIMITS = (1e-3, 1e-2)


def run(options: Options) -> Outcome:
    """Measure the errors on this machine's GPU, and count what rules see with the CPU build.

    The bits are the same, and so are the rules' answers; the CPU build needs no turn at the GPU.
    Raises: ValueError if there is no GPU or no commit, or a quick run would write to data/.
    """
    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/ and quick is on; allowed: --quick with --out FOLDER")
    started, commit, facts = datetime.now(UTC), commit_text(options), device.facts()
    with device.sampling() as reading:
        measured = list(accuracy_rows(options.seed, "cuda", quick=options.quick))
    origin = provenance.collect(
        {**facts, **reading.sensors}, seed=options.seed, repeats=1, commit=commit, started=started
    )
    options.progress(f"{len(measured)} errors")
    path, detection = options.out / DATA_FILE, options.out / DETECTION_FILE
    store.replace(path, [row | origin for row in measured], schema.MEASUREMENTS)
    counted = counts(1 if options.quick else SEEDS, commit, started)
    store.replace(detection, counted, schema.DETECTION)
    datapackage.write(options.out)
    return Outcome(len(measured) + len(counted), (path, detection))


def counts(seeds: int, commit: str, started: datetime) -> list[Row]:
    """Every rule's answers to right and wrong kernels, from this machine's CPU build."""
    told = {"device": CPU, "commit": commit, "started_utc": provenance.utc_text(started)}
    chosen = runs.tasks(seeds)
    with all_cores() as spread:
        list(spread(_run, chosen[:1]))  # builds what the others share
        return count(itertools.chain.from_iterable(spread(_run, chosen)), told)


def _run(task: Task) -> list[tuple[Cell, dict[str, str]]]:
    return list(runs.run(task, "cpu"))


def accuracy_rows(seed: int, where: str, *, quick: bool = False) -> Iterator[Row]:
    """Errors of every prefill kernel in the whole test, and on random inputs of many lengths."""
    for dtype in DTYPES[-1:] if quick else DTYPES:
        for causal in (False, True):
            for inputs in INPUTS:
                yield from errors(RaggedTest(causal, dtype), inputs, seed, where)
        for kv_len in LENGTHS[:2] if quick else LENGTHS:
            yield from errors(RaggedTest(False, dtype).of_length(kv_len), "random", seed, where)


def errors(test: RaggedTest, inputs: str, seed: int, where: str) -> Iterator[Row]:
    """Rows of one draw: how far each kernel is from float64, and what the limits would say."""
    from labkernels import ops

    drawn = draw(test, inputs, seed=seed, device=where)
    truth, _ = oracle.attention(drawn.problem())
    for spec in discover().values():
        if spec.family != "prefill" or spec.language == "torch":
            continue
        done = ops.prefill(
            drawn.q,
            drawn.kv,
            drawn.cu_seqlens_q,
            causal=test.causal,
            scale=drawn.scale,
            kernel=spec.name,
        )
        note = f"{inputs}, {'causal' if test.causal else 'full'}"
        for metric, value in numbers(accuracy.as_float64(done.out), truth, test.dtype).items():
            yield {
                **_words(spec, test, done.plan.tile),
                "metric": metric,
                "statistic": "exact",
                "value": value,
                "unit": "1",
                "note": note,
            }


def numbers(out: np.ndarray, truth: np.ndarray, dtype: str) -> dict[str, float]:
    """Errors of an output, and the share of elements beyond each limit of the truth, rounded."""
    table = metrics.error_table(out, truth, by="all")
    reference = rounding.round_to(truth, dtype)
    off = np.abs(metrics.difference(out, reference))
    beyond = {
        f"beyond {limit:g}": float((~(off <= limit + limit * np.abs(reference))).mean())
        for limit in LIMITS
    }
    return {
        "rmse": float(table["rmse"]),
        "max_abs": float(table["max_abs"]),
        "rel_l2": float(table["rel_l2"]),
        "not the nearest number": float((out != reference).mean()),
        **beyond,
    }


def _words(spec: KernelSpec, test: RaggedTest, tile: str) -> Row:
    policy = spec.policies[0]
    return {
        "experiment": NAME,
        "kernel": spec.name,
        "backend": spec.language,
        "tensor_cores": "on" if spec.uses_tensor_cores(policy) else "off",
        "tile": tile,
        "policy": policy.label,
        "batch": test.batch,
        "kv_len": test.kv_len,
        "q_heads": test.heads,
        "kv_heads": test.heads,
        "head_dim": test.head_dim,
        "page_size": 0,
        "dtype": test.dtype,
    }
