"""`labkernels cache`: what the cache of compiled kernels holds, and its clearing."""

import argparse

from labkernels.cli.options import DONE

HELP = "compiled kernels: show and clear"
DESCRIPTION = """\
Show the cache of compiled kernels: its folder, its entries and bytes by kind, what
is damaged (it will be compiled again), and what killed builds left (it goes with
the next build). LABKERNELS_CACHE names another folder, LABKERNELS_CACHE_MB how
many mebibytes entries may take before the least recently used ones go.

examples:
  labkernels cache                                      show it; every entry is verified
  labkernels cache --clear                              remove what it holds
"""


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add whether to clear."""
    sub.add_argument("--clear", action="store_true", help="remove all entries")


def run(options: argparse.Namespace) -> int:
    """Print what the cache holds, after clearing it if the options say so."""
    from labkernels.cuda.compiler import cache

    if options.clear:
        cache.clear()
    print(text(cache.contents(), cache.limit_bytes()))
    return DONE


def text(found, limit: int) -> str:
    """Return what a cache holds as aligned lines."""
    lines = [f"{found.folder}: {_mib(found.n_bytes)} of {_mib(limit)}"]
    for kind, (count, size) in sorted(found.kinds.items()):
        lines.append(f"  {kind:<10}{count:>6} {_mib(size):>12}")
    lines += [f"  damaged   {name}" for name in found.damaged]
    if found.leftovers:
        lines.append(f"  unfinished builds: {found.leftovers}")
    return "\n".join(lines)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
