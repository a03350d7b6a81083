"""One line for a test suite, in place of a tolerance that was copied from another suite."""

from labkernels.audit.verdict import verdict
from labkernels.numerics.verdict.verdict import BUG, LESS_EXACT, ROUNDING


def assert_attention_close(
    out,
    q,
    k=None,
    v=None,
    *,
    allow_inconclusive: bool = True,
    allow_less_exact: bool = False,
    **how,
) -> None:
    """Fail with the verdict's summary if an output differs from float64 by more than rounding.

    Arguments as for `labkernels.verdict`. INCONCLUSIVE passes unless allow_inconclusive is False or
    the inputs were not finite: each test finds about one right output in 10,000 odd by chance. LESS
    EXACT fails unless allow_less_exact: an accumulator in fp16 is correct arithmetic, but less
    exact than the format allows.
    Raises: AssertionError whose message is the verdict; ValueError for shapes it cannot judge.

    >>> import numpy as np
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 1, 64)).astype(np.float16)
    >>> assert_attention_close(v, q, k, v)  # of one key, attention gives its V
    >>> assert_attention_close(-v, q, k, v)
    Traceback (most recent call last):
    AssertionError: BUG...
    """
    found = verdict(out, q, k, v, **how)
    sound = found.answer == ROUNDING
    if allow_inconclusive and found.findings:
        sound = found.answer not in (BUG, LESS_EXACT)
    if allow_less_exact and found.answer == LESS_EXACT:
        sound = True
    if not sound:
        raise AssertionError(found.summary())
