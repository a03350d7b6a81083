"""What the commands share: exit codes, and the options that describe a workload."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkernels.kernels.kernel import Kernel
    from labkernels.kernels.workload import Workload

DEFAULT_HEAD_DIM = 128
DONE, FAILED, USAGE, LESS_EXACT, INTERRUPTED = 0, 1, 2, 3, 130


def add_shape(sub: argparse.ArgumentParser) -> None:
    """Add a kernel and the shape of its heads."""
    sub.add_argument("kernel", help="a kernel folder's name, such as decode_mma")
    of_head = "elements per head (default 128, or what the kernel offers)"
    sub.add_argument("--head-dim", type=int, default=None, help=of_head)
    sub.add_argument("--dtype", default="bf16", help="fp16 or bf16 (default bf16)")
    sub.add_argument("--tile", default="", help="tile option; default: the preferred one")
    sub.add_argument("--kv-heads", type=int, default=8, help="key/value heads (default 8)")
    sub.add_argument("--page-size", type=int, default=16, help="keys per page (default 16)")


def head_dim_of(spec: Kernel, options: argparse.Namespace) -> int:
    """Return the head dimension of the options, else one that the kernel has."""
    if options.head_dim is not None:
        return options.head_dim
    return DEFAULT_HEAD_DIM if DEFAULT_HEAD_DIM in spec.head_dims else spec.head_dims[0]


def workload_of(spec: Kernel, options: argparse.Namespace, *, q_heads: int) -> Workload:
    """Return the workload for a kernel's operation, from the options that the operation uses.

    By default a prefill has as many tokens as keys; the other operations have one token.
    """
    from labkernels.kernels.kernel import head_dim_v
    from labkernels.kernels.operation import operations

    kind = operations()[spec.operation].workload
    known = {field.name for field in fields(kind)}
    q_len = options.q_len or (options.kv_len if "q_lens" in known else 1)
    head_dim = head_dim_of(spec, options)
    asked = {
        "kv_lens": (options.kv_len,) * options.batch,
        "q_lens": (q_len,) * options.batch,
        "new_lens": (q_len,) * options.batch,
        "q_len": q_len,
        "q_heads": q_heads,
        "kv_heads": options.kv_heads,
        "head_dim": head_dim,
        "head_dim_v": head_dim_v(head_dim),
        "page_size": options.page_size if "paged" in spec.layouts else None,
        "dtype": options.dtype,
        "causal": options.causal,
    }
    return kind(**{name: value for name, value in asked.items() if name in known})


def add_tokens(sub: argparse.ArgumentParser) -> None:
    """Add query tokens and the mask, which a decode does not have."""
    tokens = "tokens per request (default: of a prefill, all; else 1)"
    sub.add_argument("--q-len", type=int, default=0, help=tokens)
    sub.add_argument("--causal", action="store_true", help="each token sees the keys up to its own")
