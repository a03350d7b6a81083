"""Rules by which projects accept an attention output, for comparison with the verdict.

Each rule compares an output with the truth. Some rules allow a multiple of the error that a 16-bit
eager attention makes on the same inputs. All of them refuse a NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Block, weighted_sum

COSINE = 5e-6
FUDGE, FUDGE_ATOL = 5.0, 1e-5
_GITHUB = "https://github.com/"


@dataclass(frozen=True, eq=False)
class Sample:
    """An output to accept or refuse.

    Shapes: out, truth and eager alike. truth is in float64; eager comes from `eager_attention`.
    out_format: the truth is rounded to it where a rule takes a reference in the output's format.
    """

    out: np.ndarray
    truth: np.ndarray
    eager: np.ndarray
    out_format: str

    @property
    def reference(self) -> np.ndarray:
        """The truth in the output's format."""
        return rounding.round_to(self.truth, self.out_format)


@dataclass(frozen=True)
class Rule:
    """A rule: its demand in words, and the file that states it."""

    name: str
    demand: str
    source: str
    accepts: Callable[[Sample], bool]


def eager_attention(problem: Problem, fmt: str) -> np.ndarray:
    """Return attention in which every operation rounds its result to the format.

    Shapes: [total_q, Hq, Dv]. Each operation is exact before its rounding, since 16 bits do not
    show the errors of fp32 sums. A row without keys gives 0.
    """
    out = problem.zeros(*problem.out_shape)
    for rows in problem.row_blocks():
        q = np.asarray(rows.of(problem.q), np.float64)
        blocks = list(rows.blocks())
        scores = np.concatenate([_eager_scores(q, block, fmt) for block in blocks], axis=-1)
        shift = np.maximum(scores.max(-1, keepdims=True), np.finfo(np.float64).min)
        weights = np.exp(scores - shift)
        total = weights.sum(-1, keepdims=True)
        p = rounding.round_to(weights / np.where(total == 0, 1.0, total), fmt)
        v = np.concatenate([block.v for block in blocks], axis=1)
        rows.put(out, rounding.round_to(weighted_sum(p, v), fmt))
    return out


def _eager_scores(q: np.ndarray, block: Block, fmt: str) -> np.ndarray:
    products = rounding.round_to(q @ np.swapaxes(block.k, 1, 2), fmt)
    scores = rounding.round_to(products * block.rows.problem.scale, fmt)
    return scores if block.hidden is None else np.where(block.hidden, -np.inf, scores)


def _farthest(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest |a - b|; NaN if there is one."""
    return float(np.max(np.abs(a - b), initial=0.0))


def _twice_eager(sample: Sample) -> bool:
    reference = sample.reference
    allowed = 2 * _farthest(sample.eager, reference)
    return _farthest(sample.out, reference) <= allowed


def _twice_eager_and_noise(sample: Sample) -> bool:
    reference, fmt = sample.reference, sample.out_format
    shifted = rounding.round_to(reference + np.float32(0.3), fmt)
    noise = _farthest(rounding.round_to(shifted - np.float32(0.3), fmt), reference)
    allowed = 2 * _farthest(sample.eager, reference) + 2 * noise
    return _farthest(sample.out, reference) <= allowed


def _fudge(sample: Sample) -> bool:
    allowed = max(FUDGE_ATOL, FUDGE * _farthest(sample.eager, sample.truth))
    return _farthest(sample.out, sample.truth) <= allowed


def _close(tolerance: float) -> Callable[[Sample], bool]:
    def accepts(sample: Sample) -> bool:
        reference = sample.reference
        allowed = tolerance + tolerance * np.abs(reference)
        return bool((np.abs(sample.out - reference) <= allowed).all())

    return accepts


def _cosine(sample: Sample) -> bool:
    a, b = sample.out, sample.reference
    squares = float((a * a + b * b).sum())
    return 1 - 2 * float((a * b).sum()) / max(squares, 1e-12) < COSINE


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "FA 2x",
            "max |out - ref| <= 2 max |eager - ref|",
            f"{_GITHUB}Dao-AILab/flash-attention/blob/main/tests/test_flash_attn.py",
            _twice_eager,
        ),
        Rule(
            "FA3 2x",
            "the same, and 2 max |(ref + 0.3 - 0.3) - ref| more",
            f"{_GITHUB}Dao-AILab/flash-attention/blob/main/hopper/test_flash_attn.py",
            _twice_eager_and_noise,
        ),
        Rule(
            "PyTorch fudge",
            "max |out - truth| <= max(1e-5, 5 max |eager - truth|)",
            f"{_GITHUB}pytorch/pytorch/blob/main/test/test_transformers.py",
            _fudge,
        ),
        Rule(
            "close 1e-3",
            "|out - ref| <= 1e-3 + 1e-3 |ref| everywhere",
            f"{_GITHUB}flashinfer-ai/flashinfer/blob/main/tests/attention/"
            "test_tensor_cores_decode.py",
            _close(1e-3),
        ),
        Rule(
            "close 1e-2",
            "|out - ref| <= 1e-2 + 1e-2 |ref| everywhere",
            f"{_GITHUB}flashinfer-ai/flashinfer/blob/main/tests/attention/test_hopper.py",
            _close(1e-2),
        ),
        Rule(
            "cosine",
            "1 - 2 sum(out ref) / (|out|^2 + |ref|^2) < 5e-6",
            f"{_GITHUB}deepseek-ai/FlashMLA/blob/main/tests/kernelkit/compare.py",
            _cosine,
        ),
    )
}
