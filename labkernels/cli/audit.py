"""`labkernels audit`: rounding or a bug, for tensors that someone saved."""

import argparse
from pathlib import Path

from labkernels.cli.options import DONE, FAILED, LESS_EXACT, USAGE, add_heads, judging

CODES = {"ROUNDING": DONE, "BUG": FAILED, "LESS EXACT": LESS_EXACT}  # anything else: USAGE
HELP = "rounding or bug, for saved tensors"
WAITING = "judging {file} against float64; --quick seeks no names"
DESCRIPTION = """\
Say of saved tensors whether the output differs from float64 by rounding or by a bug.

It takes .npz, .safetensors, .pt (a dict of tensors), the folder of a call that FlashInfer dumped at
level 10, and a folder of SGLang's dumper. It needs
  q, out   [B, Hq, D], one query per request; [B, Hq, M, D] or [B, M, Hq, D]; or [total_q, Hq, D]
           and cu_seqlens_q [B + 1]. out may have another D, that of v
  k, v     [B, Hkv, L, D] or [B, L, Hkv, D], and kv_len [B] where lengths differ; [total, Hkv, D]
           and cu_seqlens [B + 1]; or pools [pages, page_size, Hkv, D], page_table and kv_len, or
           FlashInfer's kv_indptr, kv_indices, kv_last_page_len. fp8 with k_scale, v_scale
  or, of a single request q, out [Hq, D] or [M, Hq, D], and k, v [L, Hkv, D]
  or MLA   q_nope, q_pe, ckv, kpe with pages and a scale
and takes, where they are there, lse (base e or 2), lse2, scale, causal (1: a request's last query
sees all keys and each one before it one key less), window_left, window_right, soft_cap, sinks,
alibi, mask, bias, descales q_scale, k_scale, v_scale of each request and head, and of a backward
pass dout, dq, dk, dv. Q, K and V may be packed as qkv or kv, flat with --heads, or in the layout
that --layout says. Tensors are found by the names that common libraries give them; --map says
others, and the answer lists what was not read. In an npz, uint16 holds the bits of bf16.

examples:
  labkernels audit dump.npz                             the verdict, the place, and the class
  labkernels audit dump.pt --map q=mine --map out=y     names of your own
  labkernels audit dump.npz --verbose                   and every test behind it
  labkernels audit dump.npz --html report.html          the same as a page with figures
  labkernels audit dump.npz --p-format fp32             a kernel that keeps P in fp32
  labkernels audit dump.pt --heads 32/8 --layout sbhd   tensors [S, B, H D] of 32 and of 8 heads

exit codes: 0 rounding; 1 bug; 2 inconclusive, or a file that cannot be judged, said in one line;
3 less exact than the format allows: something was rounded that need not have been.
"""


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the file, and options for what the file does not say."""
    sub.add_argument("file", type=Path, help="a file of tensors, or a folder of dumps")
    add_reading(sub)
    sub.add_argument("--html", type=Path, default=None, help="write a page with figures here")
    sub.add_argument("--scale", type=float, default=None, help="default 1 / sqrt(head_dim)")
    sub.add_argument("--verbose", action="store_true", help="print every test with its limits")


def add_reading(sub: argparse.ArgumentParser) -> None:
    """Add the names of a file's tensors, and how much of a file is read."""
    sub.add_argument("--map", action="append", metavar="OURS=THEIRS", help="a tensor's name")
    sub.add_argument("--max-gib", type=float, default=4.0, help="read no more than this (4)")
    lies = "bhsd, bshd, sbhd, thd, or of the cache nhd, hnd (default: as names and shapes say)"
    sub.add_argument("--layout", default=None, help=lies)
    add_heads(sub, None, "heads of flat tensors [T, H D]")
    formats = "fp32, fp16, bf16, fp16x2, bf16x2, e4m3 (default: q's)"
    sub.add_argument("--p-format", default=None, help=formats)
    sub.add_argument("--quick", action="store_true", help="the answer without the names of a bug")


def how_read(options: argparse.Namespace) -> dict:
    """Return what the options of `add_reading` say."""
    from labkernels.audit.names import parse_map

    return {
        "p_format": options.p_format,
        "names": parse_map(options.map),
        "max_gib": options.max_gib,
        "layout": options.layout,
        "heads": options.heads,
        "named": not options.quick,
    }


def run(options: argparse.Namespace) -> int:
    """Judge the file; the exit code is the verdict."""
    from labkernels.audit.dumps import audit

    page = options.html
    if page is not None and page.resolve().suffix not in (".html", ".htm"):
        raise ValueError(f"--html = {page}, allowed: a name that ends in .html, unlike a dump")
    with judging(options.file):
        found = audit(options.file, scale=options.scale, **how_read(options))
    print(found.summary(verbose=options.verbose))
    if options.html is not None:
        try:
            from labkernels import plots
        except ModuleNotFoundError as error:
            remedy = "pip install 'labkernels[audit]'"
            raise ValueError(f"--html needs {error.name}: {remedy}") from None

        page = plots.verdict_page(found, origin=f"computed on this machine from {options.file}")
        options.html.write_text(page, encoding="utf-8")
        print(f"report: {options.html}")
    return CODES.get(found.answer, USAGE)
