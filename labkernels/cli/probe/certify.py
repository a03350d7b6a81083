"""`labkernels certify`: whether the batch changes the bits of a request."""

import argparse
import json
import sys
from dataclasses import asdict

from labkernels.cli.options import USAGE, add_heads, add_window, variant_of
from labkernels.cli.probe import add_switches, say, switches_of, target_of

HELP = "whether the batch changes a request's bits, for any kernel"
DESCRIPTION = """\
Call an attention kernel with the same request alone, in larger batches, beside other requests, in
other pages and in chunks, and compare the bits of its output. The kernel is a name of
`labkernels probe --list`, or your own function, as module:function or as file.py:function, with
the tensors that `labkernels probe --help` lists for each layout.

examples:
  labkernels certify decode_mma_n8                            the plan that looks at the batch
  labkernels certify decode_mma_n8 --with batch_invariant=true
  labkernels certify prefill_wgmma --causal --queries 64 --with batch_invariant=true
  labkernels certify decode_mma --window 1023 --with batch_invariant=true
  labkernels certify flashinfer:fa2 --layout paged_decode --with disable_split_kv=true
  labkernels certify torch:flash --keys 512,8192 --batches 2,8,64
  labkernels certify my_kernel.py:attention --layout ragged --causal

exit codes: 0 the same bits always; 1 other bits; 2 the kernel refused every call, or the request
was wrong, as one line says.
"""
ON_CPU = {"lengths": (80, 1100), "batches": (2, 8)}


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the kernel, the shapes, and the options that the kernel is called with."""
    sub.add_argument("kernel", help="a name, module:function or file.py:function")
    sub.add_argument("--layout", default=None, help="default: the first that the kernel offers")
    sub.add_argument("--dtype", default="bf16", help="fp16, bf16 (default) or fp32")
    sub.add_argument("--device", default=None, help="cpu or cuda (default: cuda if there is one)")
    sub.add_argument("--keys", default=None, help="of the request (default 512,2048,8192)")
    sub.add_argument("--batches", default=None, help="requests in a call (default 2,4,8,16,32,64)")
    sub.add_argument("--queries", type=int, default=None, help="query tokens of each request")
    add_heads(sub, (32, 8), "query heads / KV heads (default 32/8)")
    sub.add_argument("--head-dim", type=int, default=128, help="channels of a head (default 128)")
    add_window(sub)
    add_switches(sub, "an option that the kernel is called with")
    sub.add_argument("--json", action="store_true", help="print the findings as JSON lines")


def run(options: argparse.Namespace) -> int:
    """Compare, and print a table of what changes the bits; the exit code says whether any does."""
    from labkernels.probing.certificate import Sizes, certify

    target, device = target_of(options)
    if target is None:
        return USAGE
    layout = options.layout or target.layouts[0]
    how = ON_CPU if device == "cpu" else {}
    for name, text in (("lengths", options.keys), ("batches", options.batches)):
        how = how | ({name: _numbers(name, text)} if text else {})
    made = certify(
        target.function(layout, variant_of(options)),
        layout,
        options.dtype,
        sizes=Sizes(*options.heads, options.head_dim, queries=options.queries),
        device=device,
        causal=options.causal,
        options=switches_of(options),
        name=f"{target.name}, {target.version()}",
        progress=say if sys.stderr.isatty() else lambda words: None,
        **how,
    )
    if sys.stderr.isatty():
        say("")
    if options.json:
        for found in made.findings:
            print(json.dumps(asdict(found)))
    else:
        print(made)
    return made.exit_code


def _numbers(name: str, text: str) -> tuple[int, ...]:
    """Return the numbers of a comma-separated list.

    Raises: ValueError naming the option if one is no number above zero.
    """
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ValueError(f"{name} = {text!r}, allowed: numbers above zero, such as 512,2048")
    return found
