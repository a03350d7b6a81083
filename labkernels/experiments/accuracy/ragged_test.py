"""FlashInfer's ragged bf16 test on our kernels: the errors, and the bugs that it can detect."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.chapters import the_test_that_could_not_fail as chapter
from labkernels.chapters.the_test_that_could_not_fail import INPUTS, RaggedTest, draw
from labkernels.experiments import rows as measured
from labkernels.experiments.accuracy import ragged_runs as runs
from labkernels.experiments.accuracy.detection import count
from labkernels.experiments.accuracy.detection_runs import DTYPES
from labkernels.experiments.accuracy.ragged_runs import Task
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import CPU, Recording
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.registry import discover
from labkernels.measure.peers import flashinfer
from labkernels.measure.peers.peer import Refused, one_line
from labkernels.numerics import arrays, metrics, rounding
from labkernels.numerics.truth import oracle
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/ragged_test.parquet"
DETECTION_FILE = "accuracy/ragged_test_detection.parquet"
FLASHINFER_FILE = "accuracy/ragged_test_flashinfer.parquet"
SEEDS = 2
LENGTHS = (17, 65, 257, 1025, 4097, 8193)  # of draws for errors: whole tiles and one more key
LIMITS = (1e-3, 1e-2)


@dataclass(frozen=True)
class Draw:
    """A test and its inputs, on which the errors of all kernels are measured."""

    test: RaggedTest
    inputs: str

    @property
    def label(self) -> str:
        """The draw as text."""
        test, mask = self.test, "causal" if self.test.causal else "full"
        return f"errors/{self.inputs}, {mask}/{test.dtype}/{test.batch} x {test.kv_len}"


@dataclass(frozen=True)
class Whole:
    """A shape of FlashInfer's own test, run unchanged on the installed FlashInfer."""

    test: RaggedTest
    backend: str

    @property
    def label(self) -> str:
        """The shape as text."""
        test, mask = self.test, "causal" if self.test.causal else "full"
        shape = f"{test.batch} x {test.kv_len}, {test.q_len} tokens, {test.heads} heads, {mask}"
        return f"FlashInfer's own/{self.backend}/{test.dtype}/{shape}"


def cells(options: Options) -> Iterator[Cell]:
    """Yield the draws for errors, the tasks for rules, and FlashInfer's own shapes.

    `quick` keeps the shortest.
    """
    for draw_ in quick_draws() if options.quick else draws():
        yield Cell(draw_.label, draw_)
    alike: dict[str, list[Task]] = {}
    for task in runs.tasks(1 if options.quick else SEEDS):
        if not options.quick or (task.test.kv_len, task.test.dtype) == (min(runs.LENGTHS), "bf16"):
            alike.setdefault(task.label, []).append(task)
    for label, tasks in alike.items():
        yield Cell(label, tasks)
    for test in itertools.islice(RaggedTest.grid(), 1 if options.quick else None):
        for backend in ("fa2", "fa3"):
            yield Cell(Whole(test, backend).label, Whole(test, backend))


def draws() -> Iterator[Draw]:
    """Yield the whole test on each kind of inputs, and random inputs of many lengths."""
    for dtype in DTYPES:
        for causal in (False, True):
            for inputs in INPUTS:
                yield Draw(RaggedTest(causal, dtype), inputs)
        for kv_len in LENGTHS:
            yield Draw(RaggedTest(False, dtype).of_length(kv_len), "random")


def quick_draws() -> Iterator[Draw]:
    """Yield the shortest lengths, on random inputs of one format."""
    for kv_len in LENGTHS[:2]:
        yield Draw(RaggedTest(False, DTYPES[-1]).of_length(kv_len), "random")


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Measure errors and FlashInfer's test on this machine's GPU, and rules on the CPU build.

    CPU builds have the bits of the GPU's kernels, so the rules give the same answers.
    """
    if isinstance(cell.of, Whole):
        with recording.sampling():
            found = list(upstream(cell.of, recording.device))
        recording.tell(", ".join(f"{row['metric']} {row['value']:g}" for row in found[:4]))
        yield from ((FLASHINFER_FILE, row | {"repeats": 1, "seed": chapter.SEED}) for row in found)
    elif isinstance(cell.of, Draw):
        with recording.sampling():
            where = recording.options.seed, recording.device
            found = list(errors(cell.of.test, cell.of.inputs, *where))
        recording.tell(f"{len(found)} errors")
        yield from ((DATA_FILE, row | {"repeats": 1}) for row in found)
    else:
        found = recording.ahead(answers_of, cell)
        recording.tell(f"{len(found)} kernels and rules")
        yield from ((DETECTION_FILE, row | {"device": CPU}) for row in found)


def answers_of(tasks: list[Task]) -> list[Row]:
    """Count every rule's answers to right and wrong kernels, from this machine's CPU build."""
    return count(itertools.chain.from_iterable(runs.run(task, "cpu") for task in tasks))


def errors(test: RaggedTest, inputs: str, seed: int, where: str) -> Iterator[Row]:
    """Yield the rows of one draw: each kernel's errors, and the share beyond each limit."""
    from labkernels import ops

    drawn = draw(test, inputs, seed=seed, device=where)
    truth, _ = oracle.attention(drawn.problem())
    for spec in discover().values():
        if spec.operation != "prefill" or spec.language == "torch":
            continue
        if spec.language == "triton" and where == "cpu":  # Triton kernels have no CPU build
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
        for metric, value in numbers(arrays.as_float64(done.out), truth, test.dtype).items():
            yield {
                **_words(spec, test, done.plan.tile),
                "metric": metric,
                "statistic": "exact",
                "value": value,
                "unit": "1",
                "note": note,
            }


def upstream(whole: Whole, where: str) -> list[Row]:
    """Return the rows of FlashInfer's output for a shape: what its test refuses, and the truth.

    If FlashInfer gives no output, one row has the reason in its note.
    """
    test = whole.test
    base = _flashinfer_columns(whole)
    try:
        drawn = chapter.draw_upstream(test, device=where)
        how = {"causal": test.causal, "scale": drawn.scale, "backend": whole.backend}
        step = flashinfer.prefill_step(drawn.q, drawn.kv, drawn.cu_seqlens_q, **how)
    except (ImportError, Refused) as error:
        return [measured.reason_row(base, "refused", one_line(error))]
    shape = (test.batch, test.q_len, test.heads, test.head_dim_v)
    out, note = step.outputs().out.view(shape), f"{base['note']}, {step.version}"
    found = _judged(test, out, chapter.reference(drawn), chapter.means(drawn))
    return [base | {"note": note} | row for row in found]


def _judged(test: RaggedTest, out, reference, truth) -> Iterator[Row]:
    """Yield the numbers of elements that the test refuses, and of keys that their queries see.

    The test compares an output with its 16-bit reference by torch's assert_close.
    """
    nearest = truth.to(out.dtype)
    values = {"elements": out.numel(), "not the nearest number": int((out != nearest).sum())}
    values["reference not the nearest number"] = int((reference != nearest).sum())
    for limit in LIMITS:
        failing = ~out.isclose(reference, rtol=limit, atol=limit)
        values[f"beyond {limit:g}"] = int(failing.sum())
        queries = failing.flatten(2).any(2).any(0).cpu()
        if limit == LIMITS[0] and test.causal and queries.any():
            seen = chapter.keys_seen(test)[queries]
            values |= {"fewest keys": int(seen.min()), "most keys": int(seen.max())}
    values["max_abs"] = float((out.double() - reference.double()).abs().max())
    for name, value in values.items():
        yield {"metric": name, "statistic": "exact", "value": value, "unit": "1"}


def _flashinfer_columns(whole: Whole) -> Row:
    test = whole.test
    mask = "causal" if test.causal else "full"
    return _shape(test) | {
        "kernel": f"flashinfer_{whole.backend}",
        "backend": "flashinfer",
        "tensor_cores": "on",
        "note": f"K = 0, {mask}, {test.q_len} tokens",
    }


def numbers(out: np.ndarray, truth: np.ndarray, dtype: str) -> dict[str, float]:
    """Return the errors, and the share of elements beyond each limit from the rounded truth."""
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


def _words(spec: Kernel, test: RaggedTest, tile: str) -> Row:
    policy = spec.policies[0]
    return _shape(test) | {
        "kernel": spec.name,
        "backend": spec.language,
        "tensor_cores": "on" if policy.tensor_cores else "off",
        "tile": tile,
        "policy": policy.label,
    }


def _shape(test: RaggedTest) -> Row:
    return {
        "batch": test.batch,
        "kv_len": test.kv_len,
        "q_heads": test.heads,
        "kv_heads": test.heads,
        "head_dim": test.head_dim,
        "page_size": 0,
        "dtype": test.dtype,
    }


EXPERIMENT = Experiment(
    "ragged_test",
    "The ragged prefill test: errors of right kernels, and the bugs that it can see",
    {
        DATA_FILE: schema.MEASUREMENTS,
        DETECTION_FILE: schema.TABLES["detection"],
        FLASHINFER_FILE: schema.MEASUREMENTS,
    },
    cells,
    rows,
    renewed=(DATA_FILE, DETECTION_FILE),
)
