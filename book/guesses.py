"""Recorded numbers that a reader may guess before the book shows them.

A page places a question by a separate line, <!-- guess: NAME -->, with a name of GUESSES.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkernels.hardware import gpu
from labkernels.records import recorded, store
from labkernels.records.store import Row

_PLACE = re.compile(r"^<!-- guess: (\w+) -->$", re.MULTILINE)
CHAPTERS = "../notebooks"
_DECODE = {
    "batch": 57, "kv_len": 8192, "q_heads": 32, "kv_heads": 8, "head_dim": 128,
    "page_size": 16, "dtype": "fp16",
}  # fmt: skip
_PREFILL = "8 x 2048 on 8 x 2048, 16/16, d128, full, bf16"
_LATENT = "64 x 4096, 128 heads, d512+64, page 64, bf16"
_TOLERANCE = "close 1e-2"


@dataclass(frozen=True)
class Guess:
    """A question, the slider of its answer, and the recorded answer with its words and source."""

    question: str
    unit: str
    most: float
    step: float
    truth: float
    says: str
    source: str
    chapter: str

    def html(self, page: str = "") -> str:
        """Return the question as an element of a page; without JavaScript its answer opens."""
        given = {
            "unit": self.unit,
            "most": self.most,
            "step": self.step,
            "truth": self.truth,
        }
        data = " ".join(f'data-{k}="{html.escape(str(v))}"' for k, v in given.items())
        answer = html.escape(f"{self.says} ({self.source[0].upper()}{self.source[1:]}.) ")
        link = f'<a href="{CHAPTERS}/{self.chapter}.html">Why?</a>' if page != self.chapter else ""
        return (
            f'<div class="lab-widget lab-guess" data-lab-widget="guess" {data}>'
            f'<p class="lab-question">{html.escape(self.question)}</p>'
            f"<details><summary>See the measurement</summary><p>{answer}{link}</p></details></div>"
        )


def placed(text: str, page: str = "") -> str:
    """Return a page's Markdown with its questions, none of which links to `page` itself.

    Raises: ValueError for a name that is not in GUESSES.
    """

    def block(found: re.Match[str]) -> str:
        name = found[1]
        if name not in GUESSES:
            raise ValueError(f"guess = {name!r}, allowed: {', '.join(GUESSES)}")
        return f"```{{raw}} html\n{GUESSES[name]().html(page)}\n```"

    return _PLACE.sub(block, text)


def _decode() -> Guess:
    rows = store.read("decode_tensor_cores")
    kernels = ("decode_fma", "decode_mma")
    run = recorded.newest_with(rows, kernels, _DECODE)
    gain = _gain(store.select(run, {**_DECODE, "metric": "time_graph"}), kernels)
    h200 = gpu("h200")
    peak = h200.tensor_fp16_flops / h200.fp32_flops
    return Guess(
        f"An H200 multiplies {peak:.0f} times as fast on its tensor cores. One decode step of 57 "
        "requests reads 8,192 keys each. How many times as fast do tensor cores make it?",
        "times as fast",
        20,
        0.1,
        gain,
        f"Tensor cores make it {gain:.2f} times as fast: the step waits for memory.",
        recorded.origin(run),
        "tensor_cores_on_and_off",
    )


def _prefill() -> Guess:
    rows = store.select(store.read("prefill"), {"note": _PREFILL, "metric": "time", "page_size": 0})
    run = store.newest(rows)
    gain = _gain(run, ("prefill_fma", "prefill_wgmma"))
    return Guess(
        "A prefill of 8 times 2,048 tokens uses each key for many queries. How many times as fast "
        "is our best kernel with tensor cores as ours without?",
        "times as fast",
        30,
        0.1,
        gain,
        f"It is {gain:.1f} times as fast: a prefill waits for products.",
        recorded.origin(run),
        "the_ladder",
    )


def _tolerance() -> Guess:
    bugs = [row for row in store.read("detection") if row["mutant"]]
    rows = store.select(bugs, {"rule": _TOLERANCE})
    runs, passed = _passed(rows)
    _, past_verdict = _passed(store.select(bugs, {"rule": "verdict"}))
    return Guess(
        "Many tests accept an attention kernel if its output is close to the right one, with a "
        "tolerance of 1e-2. Of 100 outputs of kernels with a known bug, how many pass this test?",
        "of 100",
        100,
        1,
        passed,
        f"{passed:.0f} of 100 pass, counted over {runs:,} outputs; the verdict of this book lets "
        f"{past_verdict:.0f} through.",
        f"measured on {rows[0]['device']}, {str(rows[0]['started_utc'])[:10]}",
        "rounding_or_bug",
    )


def _equal_heads() -> Guess:
    rows = store.select(store.read("two_roads_heads"), {"road": "kvcache"})
    facts = store.select(store.read("two_roads"), {"started_utc": rows[0]["started_utc"]})
    equal = sum(int(row["different"]) == 0 for row in rows)
    samples, heads = (len({row[of] for row in rows}) for of in ("sample", "head"))
    return Guess(
        f"The last token of {samples} samples with {heads} heads each is computed twice: by a full "
        f"pass, and from the KV cache. In how many of the {len(rows)} heads are all bits equal?",
        f"of {len(rows)} heads",
        len(rows),
        1,
        equal,
        f"They are equal in {equal} of {len(rows)} heads.",
        recorded.origin(facts),
        "two_roads",
    )


def _bits_in_a_batch() -> Guess:
    which = {"operation": "decode", "kv_len": 8192, "batch": 64}
    rows = store.select(store.read("batch_bits"), which)
    changed = sum(int(row["heads_differ"]) > 0 for row in rows)
    libraries = len({row["library"] for row in rows})
    return Guess(
        f"A request of 8,192 keys is decoded alone, and again in a batch of 64, in {len(rows)} "
        f"ways: by kernels of {libraries} libraries, with their switches. How many give other "
        "bits?",
        f"of {len(rows)} ways",
        len(rows),
        1,
        changed,
        f"{changed} of {len(rows)} ways give other bits.",
        recorded.origins(rows),
        "same_bits",
    )


def _zero_keys() -> Guess:
    rows = [
        row
        for row in store.select(store.read("ragged_test_detection"), {"rule": "the test, 1e-2"})
        if row["mutant"] and row["family"].startswith("K = V = 0")
    ]
    runs, passed = _passed(rows)
    return Guess(
        "A test sets K and V to zero, as FlashInfer's has since 2025, and allows 1e-2. Of 100 "
        "outputs of kernels with a known bug, how many does the test refuse?",
        "of 100",
        100,
        1,
        100 - passed,
        f"It refuses {100 - passed:.0f} of 100, counted over {runs:,} outputs.",
        f"from the {rows[0]['device']}, {str(rows[0]['started_utc'])[:10]}",
        "the_test_that_could_not_fail",
    )


def _smallest_tile() -> Guess:
    rows = store.select(store.read("mla"), {"note": _LATENT, "metric": "time_graph"})
    run = store.newest([row for row in rows if str(row["kernel"]).startswith("mla_mma 64x")])
    times = _gain(run, ("mla_mma 64x16x8x1x1", "mla_mma 64x64x8x2x1"))
    return Guess(
        "A GPU with 100 KB of shared memory per SM must take the smallest of three tiles. How many "
        "times as long does this tile take as the largest, both on an H200, with 128 heads?",
        "times as long",
        10,
        0.1,
        times,
        f"It takes {times:.1f} times as long.",
        recorded.origin(run),
        "a_typo_that_looked_like_rounding",
    )


def _busy_tensor_cores() -> Guess:
    where = {"kernel": "prefill_wgmma", "head_dim": 128, "tile": "", "metric": "tensor_pipe"}
    run = store.newest(store.select(store.read("counters"), where))
    busy = float(run[0]["value"])
    return Guess(
        "Our fastest prefill keeps the tensor cores fed by the TMA and overlaps its softmax with "
        "products. In how many of 100 clocks do the tensor cores hold a product, at head_dim 128?",
        "of 100 clocks",
        100,
        1,
        busy,
        f"They hold one in {busy:.0f} of 100 clocks.",
        recorded.origin(run),
        "half_idle_tensor_cores",
    )


def _passed(rows: list[Row]) -> tuple[int, float]:
    """Return how many outputs a rule judged, and how many of 100 it let through."""
    runs, refused = (sum(int(row[name]) for row in rows) for name in ("runs", "refused"))
    return runs, 100 * (1 - refused / runs)


def _gain(rows: list[Row], kernels: Sequence[str]) -> float:
    """Return how many times as fast the second kernel is, by the medians of the times.

    Raises: ValueError unless each kernel has one median.
    """
    medians = store.select(rows, {"statistic": "median"})
    times = {name: store.select(medians, {"kernel": name}) for name in kernels}
    for name, found in times.items():
        if len(found) != 1:
            raise ValueError(f"{name} has {len(found)} recorded medians, allowed: 1")
    slow, fast = (float(times[name][0]["value"]) for name in kernels)
    return slow / fast


GUESSES: dict[str, Callable[[], Guess]] = {
    "decode_gain": _decode,
    "prefill_gain": _prefill,
    "passed_tolerance": _tolerance,
    "equal_heads": _equal_heads,
    "bits_in_a_batch": _bits_in_a_batch,
    "zero_keys": _zero_keys,
    "smallest_tile": _smallest_tile,
    "busy_tensor_cores": _busy_tensor_cores,
}
