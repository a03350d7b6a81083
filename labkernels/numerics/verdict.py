"""Rounding, or a bug? One decode output against float64, with the evidence.

An output is ROUNDING if every test of `evidence` is passed, BUG if one fails at a rate of 1e-7, and
INCONCLUSIVE between (1e-4) or where there is nothing to judge by: inputs that are not finite.
"""

from dataclasses import dataclass, field

import numpy as np

from labkernels.numerics import bounds, error_model, evidence, filters, metrics, naming, oracle
from labkernels.numerics.hypotheses import Match, Row

ROUNDING, BUG, INCONCLUSIVE = "ROUNDING", "BUG", "INCONCLUSIVE"
SPLITS_ALLOWED = 256  # more than any plan uses, so that a bound holds for all of them


@dataclass(frozen=True)
class Rounds:
    """How the kernel under test rounds, as far as it is known.

    denominator None: either; the larger sigma counts. tensor_cores: also right for a kernel without
    them, whose bound is a part of it.
    """

    p_format: str
    out_format: str
    denominator: str | None = None
    exp2: str = "mufu"
    tensor_cores: bool = True
    arch: str = "sm_90"


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer, its evidence and, for a bug, the mistakes that explain it.

    Shapes: error, bound, sigma, z [B, Hq, Dv]; z is error / sigma.
    """

    answer: str
    why: str
    findings: tuple[evidence.Finding, ...]
    matches: tuple[Match, ...]
    rounds: Rounds
    error: np.ndarray = field(repr=False)
    bound: np.ndarray = field(repr=False)
    sigma: np.ndarray = field(repr=False)

    @property
    def z(self) -> np.ndarray:
        """Errors in units of their expected standard deviation; 0 where both are 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.error == 0, 0.0, self.error / self.sigma)

    def summary(self) -> str:
        """Text: the answer, why, and every test with its limits."""
        lines = [f"{self.answer}: {self.why}"]
        lines += [f"  named: {match}" for match in self.matches]
        lines.append(f"  {'test':<30}{'value':>10}{'odd above':>11}{'bug above':>11}")
        for found in self.findings:
            mark = "" if found.status == "rounding" else f"  <- {found.status}"
            place = f"  {found.where}" if found.where and mark else ""
            lines.append(
                f"  {found.name:<30}{found.value:>10.3g}{found.odd:>11.3g}{found.bug:>11.3g}"
                + mark
                + place
            )
        rounds = self.rounds
        lines.append(
            f"  taken as: P in {rounds.p_format}, out in {rounds.out_format}, denominator "
            f"{rounds.denominator or 'of either kind'}, exp2 {rounds.exp2}"
        )
        return "\n".join(lines)


def decode_verdict(
    out, q, k_pool, v_pool, page_table, kv_lens, *, scale: float, rounds: Rounds, lse2=None
) -> Verdict:
    """Judge an output of one query token a request.

    Shapes: out [B, Hq, Dv], lse2 [B, Hq] or None; the rest as oracle.decode_float64
    Raises: ValueError where shapes disagree or a length or page number is out of range.
    """
    paged = (q, k_pool, v_pool, page_table, kv_lens)
    oracle.check_decode(*paged)
    out = _shaped("out", out, (*q.shape[:2], v_pool.shape[-1]))
    truth, truth_lse2 = oracle.decode_float64(*paged, scale=scale)
    error = metrics.difference(out, truth)
    kinds = (rounds.denominator,) if rounds.denominator else bounds.DENOMINATORS
    common = {"scale": scale, "p_format": rounds.p_format, "exp2": rounds.exp2}
    chain = {
        **common,
        "splits": SPLITS_ALLOWED,
        "tensor_cores": rounds.tensor_cores,
        "denominator": kinds[-1],
        "arch": rounds.arch,
    }
    bound = bounds.decode_bound(*paged, out_format=rounds.out_format, **chain)
    if not np.isfinite(bound).all():
        why = "an input is not finite, so nothing says what the output should be"
        return Verdict(
            INCONCLUSIVE, why, (), (), rounds, error, bound, np.full(bound.shape, np.nan)
        )
    if not np.any(np.asarray(kv_lens) > 1):
        found = (evidence.of_bound(error, bound, "error / bound"),)
        return _answered(found, (), rounds, error, bound, np.zeros(bound.shape))
    sigma = _sigma(paged, truth, kinds, rounds.out_format, common)
    found = [evidence.of_bound(error, bound, "error / bound")]
    if lse2 is not None:
        lse2 = _shaped("lse2", lse2, q.shape[:2])
        allowed = bounds.decode_lse2_bound(*paged, **chain)
        off = metrics.difference(lse2, truth_lse2)
        found.append(evidence.of_bound(off, allowed, "lse2 error / bound"))
    filtered, z, tests = _tests(error, sigma, paged, scale, rounds)
    found += tests
    matches = ()
    if any(item.status == "bug" for item in found):
        row = _worst_row(out, z, paged, scale, truth, sigma, rounds, filtered)
        bugs = {item.name: item for item in found if item.status == "bug"}
        known = naming.of_output(out, truth, sigma, rounds.out_format)
        known += naming.of_lse2(lse2, truth_lse2, bugs)
        known += naming.of_row(row) or naming.of_filters(error, sigma, bugs, filtered)
        matches = tuple(known)
    return _answered(tuple(found), matches, rounds, error, bound, sigma)


def _sigma(paged, truth, kinds, out_format: str, common) -> np.ndarray:
    """The larger sigma of the denominators, with the chain's bias as a part of it."""
    variances = [
        error_model.decode_sigma(*paged, out_format=out_format, denominator=kind, **common) ** 2
        for kind in kinds
    ]
    bias = evidence.chain_bias(paged[-1])[:, None, None] * truth
    return np.sqrt(np.max(variances, axis=0) + bias**2)


def _tests(error, sigma, paged, scale: float, rounds: Rounds):
    """The filters, z over its slack, and the findings that need them."""
    kv_lens = paged[-1]
    filtered = filters.decode_filters(
        error,
        np.where(sigma > 0, sigma, 1.0),
        *paged,
        scale=scale,
        p_format=rounds.p_format,
        denominator=rounds.denominator or "unrounded",
    )
    slack = evidence.variance_slack(filtered, p_format=rounds.p_format, exp2=rounds.exp2)
    live = np.broadcast_to(np.asarray(kv_lens)[:, None] > 1, slack.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.where((error == 0) | ~live[..., None], 0.0, error / sigma)
        z = z / np.sqrt(slack)[..., None]
    found = evidence.of_spread(z, filtered, live)
    found += evidence.of_outliers(z)
    found += evidence.of_directions(
        filtered, slack, kv_lens, p_format=rounds.p_format, exp2=rounds.exp2
    )
    found += evidence.of_keys(filtered, slack, kv_lens)
    return filtered, z, found


def _answered(found, matches, rounds, error, bound, sigma) -> Verdict:
    bugs = [item for item in found if item.status == "bug"]
    odd = [item for item in found if item.status == "odd"]
    if bugs:
        first = bugs[0]
        name = f"{matches[0].name} {matches[0].where}".strip() if matches else "no name known"
        why = (
            f"{name}; {len(bugs)} of {len(found)} tests exceed what rounding can do, first: "
            f"{first.name} {first.value:.3g} > {first.bug:.3g} {first.where}".rstrip()
        )
        return Verdict(BUG, why, found, matches, rounds, error, bound, sigma)
    if odd:
        why = f"{odd[0].name} is odd ({odd[0].value:.3g} > {odd[0].odd:.3g}), not impossible"
        return Verdict(INCONCLUSIVE, why, found, (), rounds, error, bound, sigma)
    why = f"{len(found)} tests, none beyond what rounding does"
    return Verdict(ROUNDING, why, found, (), rounds, error, bound, sigma)


def _worst_row(out, z, paged, scale, truth, sigma, rounds, filtered) -> Row | None:
    """The row whose finite errors stand out most from what rounding allows it."""
    q, k_pool, v_pool, page_table, kv_lens = paged
    finite = np.isfinite(z).all(-1) & (np.asarray(kv_lens)[:, None] > 0)
    if not finite.any():
        return None
    score = np.where(finite, (z**2).mean(-1) / evidence.row_limits(filtered), -1.0)
    b, head = np.unravel_index(int(score.argmax()), score.shape)
    return Row(
        place=(int(b), int(head)),
        out=out[b, head],
        sigma=sigma[b, head],
        q=np.asarray(q[b, head], np.float64) * scale,
        k_pool=k_pool,
        v_pool=v_pool,
        pages=page_table[b],
        kv_len=int(kv_lens[b]),
        kv_head=int(head) // (q.shape[1] // k_pool.shape[2]),
        outputs=truth,
        out_format=rounds.out_format,
    )


def _shaped(name: str, values, shape: tuple[int, ...]) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.shape != shape:
        raise ValueError(f"{name}.shape = {values.shape}, allowed: {shape}")
    return values
