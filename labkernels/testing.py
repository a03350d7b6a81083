"""One line for a test suite, in place of a tolerance copied from another."""

from labkernels.measure.verdict import verdict
from labkernels.numerics.verdict import BUG, ROUNDING


def assert_attention_close(
    out,
    q,
    k=None,
    v=None,
    *,
    kv_len=None,
    cu_seqlens=None,
    cache=None,
    lse2=None,
    scale: float | None = None,
    p_format: str | None = None,
    denominator: str | None = None,
    exp2: str = "mufu",
    allow_inconclusive: bool = True,
) -> None:
    """Fail with the verdict's summary where an output is further from float64 than by rounding.

    Arguments as for `labkernels.verdict`. INCONCLUSIVE passes unless allow_inconclusive is False or
    the inputs were not finite: a right output is odd once in some thousand runs.
    Raises: AssertionError whose message is the verdict; ValueError for shapes it cannot judge.
    """
    found = verdict(
        out,
        q,
        k,
        v,
        kv_len=kv_len,
        cu_seqlens=cu_seqlens,
        cache=cache,
        lse2=lse2,
        scale=scale,
        p_format=p_format,
        denominator=denominator,
        exp2=exp2,
    )
    sound = found.answer == ROUNDING
    if allow_inconclusive and found.findings:
        sound = found.answer != BUG
    if not sound:
        raise AssertionError(found.summary())
