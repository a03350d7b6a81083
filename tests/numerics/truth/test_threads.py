"""Blocks of rows on several threads: the same results, and no thread without a limit."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.threads import over_rows
from labkernels.numerics.verdict import twins, verdict
from labkernels.numerics.verdict.twins import Twin
from labkernels.policy import NumericPolicy


@pytest.fixture(scope="module")
def problem():
    """Two requests of unequal length with 2^20 scores and a few rows that see no key."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 4, 16)).astype(np.float32) for n in (700, 1400, 1400))
    ends = np.array([0, 300, 700])
    return Problem.packed(q, k, v, [0, 200, 1400], cu_seqlens_q=ends, scale=0.25, causal=True)


def blas_threads():
    return {
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    }


def test_results_are_those_of_one_thread(problem):
    policy = NumericPolicy(p="bf16", out="bf16")
    (out,) = twins.outputs(problem, policy, (Twin(128),))
    found = []
    for threads in (1, 3):
        with threadpool_limits(threads):
            found.append(verdict.decide(problem, out, policy=policy))
    one, three = found
    assert one.answer == verdict.ROUNDING
    assert one.findings == three.findings
    assert one.matches == three.matches
    for name in ("error", "bound", "sigma"):
        np.testing.assert_array_equal(getattr(one, name), getattr(three, name))


def test_work_has_several_threads_whose_products_have_one(problem):
    with threadpool_limits(3):
        seen = [
            made
            for _, made in over_rows(problem, lambda _: (threading.get_ident(), blas_threads()))
        ]
        assert blas_threads() == {3}
    assert len({thread for thread, _ in seen}) > 1
    assert threading.get_ident() not in {thread for thread, _ in seen}
    assert all(limit == {1} for _, limit in seen)


def test_products_of_a_small_problem_have_one_thread_that_waits_for_none():
    q, k, v = (np.ones((n, 4, 16), dtype=np.float32) for n in (8, 64, 64))
    small = Problem.packed(q, k, v, [0, 64], cu_seqlens_q=np.array([0, 8]), scale=0.25)
    with threadpool_limits(3):
        seen = [
            made for _, made in over_rows(small, lambda _: (threading.get_ident(), blas_threads()))
        ]
        assert blas_threads() == {3}
    assert seen == [(threading.get_ident(), {1})]


@pytest.mark.parametrize("threads", [1, 3])
def test_errors_and_settings_of_the_caller_count(problem, threads):
    def divide(rows):
        return np.ones(1) / np.zeros(1)

    with threadpool_limits(threads):
        with np.errstate(divide="ignore"):
            assert all(np.isinf(made) for _, made in over_rows(problem, divide))
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
            list(over_rows(problem, divide))
        assert blas_threads() == {threads}


def test_blocks_come_in_order_and_each_once(problem):
    for threads in (1, 3):
        with threadpool_limits(threads):
            places = [made for _, made in over_rows(problem, lambda rows: (rows.first, rows.last))]
        assert places == [(rows.first, rows.last) for rows in problem.row_blocks()]
        assert places[-1][1] == 700
