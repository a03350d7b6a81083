"""`labkernels probe`: the datasheet of an attention kernel, read off from outside."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from labkernels.cli.options import USAGE, add_heads, add_window, variant_of
from labkernels.variant import FULL

if TYPE_CHECKING:
    from labkernels.probing.targets import Target

HELP = "the datasheet of a kernel: what it computes, how it rounds, what is wrong"
DESCRIPTION = """\
Call an attention kernel with chosen inputs, and read its facts and its defects off the outputs.

The kernel is a name that the probe knows, or your own function, as module:function or as
file.py:function. The function takes tensors of torch and returns out, or (out, lse):
  bhsd          q [B, Hq, M, D], k, v [B, Hkv, N, D]
  bshd          q [B, M, Hq, D], k, v [B, N, Hkv, D]
  ragged        q [T, Hq, D], k, v [S, Hkv, D], cu_q, cu_k [B + 1] int32
  paged_decode  q [B, Hq, D], k, v [pages, page_size, Hkv, D], page_table [B, n], kv_lens [B] int32
  paged_prefill q [T, Hq, D], k, v, page_table, kv_lens as above, cu_q [B + 1]
  mla           q_nope [B, H, 512], q_pe [B, H, 64], ckv, kpe [pages, page_size, 512 or 64],
                page_table, kv_lens
Without --causal, --window and their like, the probe finds out which attention the kernel
computes. With them, what differs from what you declare is a defect.

examples:
  labkernels probe decode_mma                           a kernel of the lab
  labkernels probe torch:flash --device cuda --causal   a backend of torch
  labkernels probe my_kernel.py:attention --layout bshd a function of yours
  labkernels probe my.module:decode --layout paged_decode --dtype fp16 --knob num_splits=1,2,4
  labkernels probe --list                               the names that the probe knows

exit codes: 0 no defect; 1 a defect; 2 the kernel cannot be judged, as one line says.
"""


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the kernel, the shapes and what is asked of the kernel."""
    sub.add_argument("kernel", nargs="?", help="a name, module:function or file.py:function")
    sub.add_argument("--list", action="store_true", help="list the names and their layouts")
    sub.add_argument("--layout", help="default: the first that the kernel offers")
    sub.add_argument("--dtype", default="bf16", help="fp16, bf16 (default), fp32 or e4m3")
    sub.add_argument("--device", help="cpu or cuda (default: cuda if there is one)")
    add_heads(sub, None, "query heads / KV heads (default: what each experiment needs)")
    sub.add_argument("--head-dim", type=int, default=64, help="channels of a head (default 64)")
    sub.add_argument("--page-size", type=int, default=16, help="keys per page (default 16)")
    add_window(sub, "declared: ")
    sub.add_argument("--full", action="store_true", help="declared: every query sees every key")
    sub.add_argument("--scale", type=float, help="default 1 / sqrt(head_dim)")
    sub.add_argument("--gradients", action="store_true", help="probe dq, dk and dv, too")
    sub.add_argument("--quick", action="store_true", help="the defects alone, without all facts")
    sub.add_argument(
        "--knob", action="append", default=[], metavar="NAME=A,B", help="values to call it with"
    )
    sub.add_argument("--json", action="store_true", help="print facts and defects as JSON lines")


def run(options: argparse.Namespace) -> int:
    """Probe the kernel and print its datasheet; the exit code is its verdict."""
    from labkernels.probing import probe, targets

    if options.list:
        for target in targets.targets().values():
            print(f"{target.name:<24}{', '.join(target.layouts)}")
        return 0
    if not options.kernel:
        raise ValueError("no kernel is named; allowed: a name of --list, or module:function")
    target, device = target_of(options)
    if target is None:
        return USAGE
    if options.causal and options.full:
        raise ValueError("--causal and --full; allowed: one of them, or none")
    variant = variant_of(options)
    layout, declared = options.layout or target.layouts[0], options.full or variant != FULL
    same = ("page_size", "scale", "gradients", "quick", "heads", "head_dim")
    sheet = probe(
        target.function(layout, variant),
        layout,
        options.dtype,
        variant if declared else None,
        device=device,
        knobs=knobs_of(options.knob),
        name=f"{target.name}, {target.version()}",
        progress=say if sys.stderr.isatty() else None,
        **{name: getattr(options, name) for name in same},
    )
    if sys.stderr.isatty():
        say("")  # the line of progress is cleared
    lines = map(json.dumps, sheet.rows()) if options.json else [sheet]
    print(*lines, sep="\n")
    return sheet.exit_code


def target_of(options: argparse.Namespace) -> tuple[Target | None, str]:
    """Return the kernel that is named and its device; None, and a line why, if it cannot run."""
    import torch

    from labkernels.probing import targets

    target = targets.find(options.kernel)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    reason = target.missing(device)
    if reason:
        print(f"cannot judge: {target.name}: {reason}")
    return (None if reason else target), device


def add_switches(sub: argparse.ArgumentParser, what: str) -> None:
    """Add --with, which passes an option of the kernel or the library on."""
    how = {"action": "append", "default": [], "metavar": "NAME=VALUE", "help": what}
    sub.add_argument("--with", dest="switches", **how)


def switches_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of --with.

    Raises: ValueError for an option without a name, or without just one value.
    """
    found = knobs_of(options.switches, "--with")
    for name, values in found.items():
        if len(values) > 1:
            raise ValueError(f"--with {name} has {len(values)} values, allowed: 1")
    return {name: value for name, (value,) in found.items()}


def knobs_of(given: list[str], option: str = "--knob") -> dict[str, list]:
    """Return the knobs with their values, read as JSON where they are (1, true, null) else as text.

    Raises: ValueError for an option without a name or a value.
    """
    knobs = {}
    for text in given:
        name, _, values = text.partition("=")
        if not (name.isidentifier() and values):
            raise ValueError(f"{option} {text!r}, allowed: NAME=VALUE")
        knobs[name] = [_value(value) for value in values.split(",")]
    return knobs


def _value(text: str):
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def say(text: str) -> None:
    """Replace the line of progress on a terminal."""
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
