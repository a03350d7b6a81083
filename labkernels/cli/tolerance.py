"""`labkernels tolerance`: the tolerance that a test of attention may use."""

import argparse
import re

from labkernels.cli.options import DONE, add_heads

HELP = "an atol and rtol that a right kernel keeps"
WAITING = "looking for bugs that pass; --quick looks for none"
DESCRIPTION = """\
Print an atol and an rtol that a right attention output keeps, the formulas that they follow from,
and what a test with this tolerance cannot see: the share of 500 drawn mistakes that it accepts.

The inputs are standard normal, v with --mean. P is taken to be rounded to the format of the inputs,
as tensor cores need it, unless --p-format says otherwise. With --kv-dtype the reference has K and
V as they were before a cache of 8 bits rounded them, with a scale for each head.

examples:
  labkernels tolerance --decode 57x8192 --heads 32/8 --dtype bf16
  labkernels tolerance --prefill 2x2048 --causal --head-dim 64 --dtype fp16
  labkernels tolerance --decode 8x1000 --kv-dtype e4m3 --no-bugs
"""

_LISTED = 3  # of the mistakes that pass, so many of the largest are listed


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the sizes of the test, its formats, and the confidence of the tolerance."""
    sizes = sub.add_mutually_exclusive_group(required=True)
    sizes.add_argument("--decode", metavar="BxL", help="requests x keys, one query per request")
    sizes.add_argument("--prefill", metavar="BxL", help="requests x keys, as many queries as keys")
    add_heads(sub, (32, 8), "heads (default 32/8)")
    sub.add_argument("--head-dim", type=int, default=128, help="elements per head (default 128)")
    sub.add_argument("--dtype", default="bf16", help="of q, k, v: fp16, bf16, fp32 (default bf16)")
    sub.add_argument("--out", default="input", help="format of the output (default that of q)")
    sub.add_argument("--p-format", default="input", help="format of P (default that of q)")
    sub.add_argument("--kv-dtype", help="K and V in a cache of e4m3 or e5m2")
    sub.add_argument("--causal", action="store_true", help="a query sees keys up to its own")
    sub.add_argument("--mean", type=float, default=0.0, help="mean of v (default 0)")
    sub.add_argument(
        "--delta", type=float, default=1e-6, help="chance of failing a right output (1e-6)"
    )
    sub.add_argument(
        "--no-bugs", "--quick", action="store_true", help="do not look for mistakes that pass"
    )


def run(options: argparse.Namespace) -> int:
    """Print the tolerance, and what it cannot see."""
    from labkernels.audit.tolerance import tolerance
    from labkernels.policy import NumericPolicy
    from labkernels.units import require_choice

    require_choice("dtype", options.dtype, ("fp16", "bf16", "fp32"))
    name = "decode" if options.decode else "prefill"
    batch, keys = _pair(name, options.decode or options.prefill, "x")
    q_heads, kv_heads = options.heads
    found = tolerance(
        batch,
        keys,
        queries=1 if options.decode else keys,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=options.head_dim,
        dtype=options.dtype,
        causal=options.causal,
        policy=NumericPolicy(p=options.p_format, denominator=None, out=options.out),
        delta=options.delta,
        mean=options.mean,
        kv_dtype=options.kv_dtype,
    )
    print(found.summary())
    if not options.no_bugs:
        _print_unseen(found, options, (batch, q_heads, kv_heads, keys))
    return DONE


def _print_unseen(found, options: argparse.Namespace, sizes: tuple[int, ...]) -> None:
    from labkernels.measure.mistakes import unseen

    batch, q_heads, kv_heads, keys = sizes
    queries = 1 if options.decode else keys
    of = (batch, q_heads, kv_heads, queries, keys, options.head_dim)
    shape = unseen.shape_like(*of, causal=options.causal)
    passed, tried = unseen.mistakes(found, shape, options.dtype, mean=options.mean)
    share = len(passed) / max(1, tried)
    lets = f"lets {len(passed)} through, {100 * share:.0f} %"
    print(f"  Of {tried} simulated mistakes this tolerance {lets}.")
    for error, mistake in passed[:_LISTED]:
        print(f"    an error of {error:.2g} of the output's rms: {mistake.words}")


def _pair(name: str, text: str, between: str) -> tuple[int, int]:
    if not re.fullmatch(rf"[0-9]{{1,9}}{between}[0-9]{{1,9}}", text):
        raise ValueError(f"{name} = {text!r}, allowed: two whole numbers with {between!r} between")
    left, _, right = text.partition(between)
    return int(left), int(right)
