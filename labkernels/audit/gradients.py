"""Judges the gradients of a dump: compares each error of dq, dk, dv and dsinks with its bound."""

from dataclasses import replace

import numpy as np

from labkernels.audit.meaning import plain
from labkernels.audit.verdict import format_of
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.error.gradient_bounds import gradient_bounds
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.gradients import Given, names_of
from labkernels.numerics.truth.gradients import gradients as exact_gradients
from labkernels.numerics.truth.layouts import tokens
from labkernels.numerics.verdict import significance
from labkernels.numerics.verdict.verdict import BUG, Verdict

NAMES = ("dq", "dk", "dv", "dsinks")


def with_gradients(found: Verdict, tensors: dict, lse2=None) -> Verdict:
    """Extend the verdict on an output to the gradients beside it, if there are any.

    Shapes: dout, dq, dk and dv in the layout of `verdict`, [B, H, S, D] or [T, H, D]; lse2 without
    D; dsinks [H].
    The exact gradients are computed twice: from the dump's output and log-sum-exp in base 2, which
    a fused backward pass is given, and from exact values of both. For each element, the smaller
    quotient of error and bound counts. Gradients have a bound but no error model, so a small
    mistake may stay below the bound.
    Raises: ValueError for gradients without dout, dsinks without sinks, or another shape.
    """
    names = [name for name in NAMES if tensors.get(name) is not None]
    if not names:
        return found
    assert found.problem is not None  # kept by `verdict`
    problem = found.problem.in_numpy()
    if "dsinks" in names and "dsinks" not in names_of(problem):
        raise ValueError("dsinks without sinks, allowed: None")
    if "dout" not in tensors:
        raise ValueError(f"dout is missing, allowed with {names[0]}")
    dout = _rows("dout", tensors["dout"], problem.out_shape)
    exact_out, exact_lse2 = (to_numpy(x) for x in oracle.attention(problem))
    lse2 = exact_lse2 if lse2 is None else _rows("lse2", lse2, exact_lse2.shape)
    stored = next((name for name in names if name != "dsinks"), "dout")
    told = replace(found.policy, out=format_of(stored, tensors[stored]))
    givens = (
        Given(problem, dout, np.asarray(found.out, np.float64), lse2),
        Given(problem, dout, exact_out, exact_lse2),
    )
    pairs = [zip(exact_gradients(x), gradient_bounds(x, told), strict=True) for x in givens]
    tests = []
    for name, *ways in zip(names_of(problem), *pairs, strict=True):
        if name not in names:
            continue
        values = _rows(name, tensors[name], ways[0][0].shape)
        ratio = np.minimum(*(_ratio(values, *way) for way in ways))
        at = np.unravel_index(int(np.argmax(np.nan_to_num(ratio, nan=np.inf))), ratio.shape)
        words = ("token", "head", "channel") if len(at) > 1 else ("head",)
        where = ", ".join(f"{word} {i}" for word, i in zip(words, at, strict=True))
        test = significance.Finding(f"{name} error / bound", float(ratio[at]), 1.0, 1.0, where)
        tests.append(test)
    wrong = [test for test in tests if test.status == "bug"]
    findings = (*found.findings, *tests)
    if not wrong:
        return replace(found, findings=findings)
    first = wrong[0]
    why = f"{first.name} {first.value:.3g} > 1 {first.where}"
    why = f"{found.why}; {why}" if found.answer == BUG else why
    return replace(found, answer=BUG, why=why, findings=findings)


def _ratio(values, exact, bound):
    with np.errstate(all="ignore"):
        return np.where(values == exact, 0.0, np.abs(values - exact) / bound)


def _rows(name: str, tensor, shape: tuple[int, ...]):
    """Return a tensor with one row per token, in float64."""
    array = plain(tensor)
    rows = tokens(array) if array.ndim == len(shape) + 1 else array
    if rows.shape != shape:
        raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: that of its tensor")
    return rows.astype(np.float64)
