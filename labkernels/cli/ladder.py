"""`labkernels ladder`: the kernels of an operation from the plainest up, and what each changes."""

import argparse

from labkernels.cli.options import DONE
from labkernels.units import format_bytes

HELP = "kernels rung by rung, each with one idea more"
DESCRIPTION = """\
List the rungs of an operation's ladder: the idea of each, the lines of code by which it
differs from the one below, its shared memory and its registers. Needs no GPU.

examples:
  labkernels ladder prefill
  labkernels ladder prefill --show ping-pong            the difference itself
"""
DEFAULT_GPU = "h200"


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the operation, the GPU, and the rung to show."""
    sub.add_argument("operation", help="prefill, decode or backward")
    sub.add_argument("--gpu", default=DEFAULT_GPU, help=f"h200, ... (default {DEFAULT_GPU})")
    sub.add_argument("--show", default="", metavar="RUNG", help="what a rung changes, as a diff")


def run(options: argparse.Namespace) -> int:
    """Print the rungs, or the difference of one rung from the rung below.

    Raises: ValueError naming the rungs, if none has the name.
    """
    from labkernels import hardware
    from labkernels.measure import ladder, resources

    if options.show:
        print(_shown(ladder.rungs(options.operation), options.show))
        return DONE
    print(f"{'rung':24}{'lines':>9}  {'shared memory':>14}{'registers':>11}  idea")
    for rung in ladder.rungs(options.operation):
        known = resources.resources(rung.instance, gpu=hardware.gpu(options.gpu))
        found = ladder.difference(rung)
        lines = f"+{found.added} -{found.removed}" if found else "–"
        smem = format_bytes(known.smem.total)
        registers = known.compiled.registers if known.compiled else "–"
        print(f"{rung.name:24}{lines:>9}  {smem:>14}{registers!s:>11}  {rung.idea}")
    return DONE


def _shown(rungs, name: str) -> str:
    from labkernels.measure import ladder

    rung = next((rung for rung in rungs if rung.name == name), None)
    if rung is None:
        allowed = ", ".join(rung.name for rung in rungs)
        raise ValueError(f"show = {name!r}, allowed: {allowed}")
    found = ladder.difference(rung)
    return found.text if found else "\n".join(rung.source)
