"""Three recorded numbers of the first page, which a reader may guess before they are shown."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from labkernels.hardware import gpu
from labkernels.records import recorded, store
from labkernels.records.store import Row

PLACE = "<!-- the guesses stand here -->"
CHAPTERS = "../notebooks"
_DECODE = {
    "batch": 57, "kv_len": 8192, "q_heads": 32, "kv_heads": 8, "head_dim": 128,
    "page_size": 16, "dtype": "fp16",
}  # fmt: skip
_PREFILL = "8 x 2048 on 8 x 2048, 16/16, d128, full, bf16"
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

    def html(self) -> str:
        """The question as an element of the page; without JavaScript the answer can be opened."""
        given = {
            "unit": self.unit,
            "most": self.most,
            "step": self.step,
            "truth": self.truth,
        }
        data = " ".join(f'data-{k}="{html.escape(str(v))}"' for k, v in given.items())
        answer = html.escape(f"{self.says} ({self.source[0].upper()}{self.source[1:]}.) ")
        link = f'<a href="{CHAPTERS}/{self.chapter}.html">Why?</a>'
        return (
            f'<div class="lab-widget lab-guess" data-lab-widget="guess" {data}>'
            f'<p class="lab-question">{html.escape(self.question)}</p>'
            f"<details><summary>See the measurement</summary><p>{answer}{link}</p></details></div>"
        )


def guesses() -> tuple[Guess, ...]:
    """Return the questions with the answers that lie in data/."""
    return (_decode(), _prefill(), _tolerance())


def markdown() -> str:
    """Return the questions as Markdown for the first page."""
    cards = "\n".join(guess.html() for guess in guesses())
    return f"```{{raw}} html\n{cards}\n```"


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
    rows = store.select(store.read("prefill"), {"note": _PREFILL, "metric": "time"})
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


def _passed(rows: list[Row]) -> tuple[int, float]:
    """How many outputs a rule judged, and how many of 100 it let through."""
    runs, refused = (sum(int(row[name]) for row in rows) for name in ("runs", "refused"))
    return runs, 100 * (1 - refused / runs)


def _gain(rows: list[Row], kernels: Sequence[str]) -> float:
    """How many times as fast the second kernel is, by the medians of its times.

    Raises: ValueError unless each has one.
    """
    medians = store.select(rows, {"statistic": "median"})
    times = {name: store.select(medians, {"kernel": name}) for name in kernels}
    for name, found in times.items():
        if len(found) != 1:
            raise ValueError(f"{name} has {len(found)} recorded medians, allowed: 1")
    slow, fast = (float(times[name][0]["value"]) for name in kernels)
    return slow / fast
