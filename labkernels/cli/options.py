"""What the commands share: exit codes, and the options that describe a workload."""

from __future__ import annotations

import argparse
import math
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING

from labkernels.variant import AttentionVariant

if TYPE_CHECKING:
    from labkernels.kernels.kernel import Kernel
    from labkernels.kernels.workload import Workload

DEFAULT_HEAD_DIM = 128
QUIET_S = 2.0
DONE, FAILED, USAGE, LESS_EXACT, INTERRUPTED = 0, 1, 2, 3, 130


def heads(text: str) -> tuple[int, int]:
    """Return the query and KV heads of an option such as 32/8; a single number is both."""
    if not re.fullmatch(r"[0-9]{1,9}(/[0-9]{1,9})?", text):
        words = f"{text!r}, allowed: query heads / KV heads, such as 32/8"
        raise argparse.ArgumentTypeError(words)
    q_heads, _, kv_heads = text.partition("/")
    return int(q_heads), int(kv_heads or q_heads)


def add_heads(sub: argparse.ArgumentParser, default: tuple[int, int] | None, what: str) -> None:
    """Add --heads Q/KV, which every command spells alike."""
    sub.add_argument("--heads", type=heads, default=default, metavar="Q/KV", help=what)


def add_scheduler(sub: argparse.ArgumentParser) -> None:
    """Add --scheduler ADDRESS, for work that may be done by Dask's workers."""
    what = "address of a Dask scheduler whose workers do the work (default: this machine)"
    sub.add_argument("--scheduler", default="", metavar="ADDRESS", help=what)


@contextmanager
def told_to_wait(words: str) -> Iterator[None]:
    """Say on stderr what takes so long, once, if it takes longer than two seconds."""
    timer = threading.Timer(QUIET_S, lambda: print(f"labkernels: {words}", file=sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def judging(what: object) -> Iterator[None]:
    """Make a line and exit code 2 of every error: exit code 1 says that an output is a bug."""
    try:
        yield
    except (ValueError, FileNotFoundError):
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise ValueError(f"{what}: cannot be judged: {type(error).__name__}: {text}") from error


def add_shape(sub: argparse.ArgumentParser, *, optional: bool = False, usual: bool = True) -> None:
    """Add a kernel, perhaps an optional one, its formats, and the usual tile, heads and pages."""
    what = "a kernel folder's name, such as decode_mma"
    sub.add_argument("kernel", nargs="?" if optional else None, help=what)
    of_head = "elements per head (default 128, or what the kernel offers)"
    sub.add_argument("--head-dim", type=int, default=None, help=of_head)
    sub.add_argument("--dtype", default="bf16", help="fp16 or bf16 (default bf16)")
    sub.add_argument("--kv-dtype", help="K and V in a cache of e4m3 or e5m2 (default: of --dtype)")
    if usual:
        sub.add_argument("--tile", default="", help="tile option; default: the preferred one")
        add_heads(sub, (32, 8), "query heads / KV heads (default 32/8)")
        sub.add_argument("--page-size", type=int, default=16, help="keys per page (default 16)")


def kv_dtype_of(asked: str | None, known: tuple[str | None, ...], whose: str) -> str | None:
    """Return an asked format of a cache, None for its dtype; ValueError if it is not known."""
    if asked not in (None, *known):
        allowed = ", ".join(filter(None, known)) or "none, K and V have the --dtype"
        raise ValueError(f"--kv-dtype {asked}, allowed for {whose}: {allowed}")
    return asked


def head_dim_of(spec: Kernel, options: argparse.Namespace) -> int:
    """Return the head dimension of the options, else one that the kernel has."""
    if options.head_dim is not None:
        return options.head_dim
    return DEFAULT_HEAD_DIM if DEFAULT_HEAD_DIM in spec.head_dims else spec.head_dims[0]


def workload_of(spec: Kernel, options: argparse.Namespace, *, counted: bool = True) -> Workload:
    """Return the workload for a kernel's operation, from the options that the operation uses.

    By default a prefill has as many tokens as keys; the other operations have one token.
    counted: whether bytes are counted, which no workload of numbers in 8 bits has.
    """
    from labkernels.kernels.kernel import head_dim_v
    from labkernels.kernels.operation import operations

    allowed = [name for name in operations() if name != "prefill_fp8" or not counted]
    if spec.operation not in allowed:
        raise ValueError(f"kernel = {spec.name!r}, allowed: one of {', '.join(allowed)}")
    kind, variant = operations()[spec.operation].workload, variant_of(options, spec)
    known = {field.name for field in fields(kind)}
    q_len = options.q_len or (options.kv_len if "q_lens" in known else 1)
    head_dim = head_dim_of(spec, options)
    narrow = spec.kv_dtypes if "kv_dtype" in known else ()
    asked = {
        "kv_lens": (options.kv_len,) * options.batch,
        "q_lens": (q_len,) * options.batch,
        "new_lens": (q_len,) * options.batch,
        "q_len": q_len,
        "q_heads": options.heads[0],
        "kv_heads": options.heads[1],
        "head_dim": head_dim,
        "head_dim_v": head_dim_v(head_dim),
        "page_size": options.page_size if "paged" in spec.layouts else None,
        "dtype": options.dtype,
        "causal": options.causal,
        "variant": variant,
        "kv_dtype": kv_dtype_of(options.kv_dtype, narrow, spec.name),
    }
    return kind(**{name: value for name, value in asked.items() if name in known})


def add_tokens(sub: argparse.ArgumentParser) -> None:
    """Add query tokens, which a decode does not have, and which attention they ask for."""
    tokens = "tokens per request (default: of a prefill, all; else 1)"
    sub.add_argument("--q-len", type=int, default=0, help=tokens)
    add_variant(sub)


def window(text: str) -> tuple[int | None, int | None]:
    """Return the keys before and after a token of an option such as 1023 or 511,512."""
    found = re.fullmatch(r"([0-9]{1,9})?(?:,([0-9]{1,9}))?", text)
    if not text or found is None:
        words = f"{text!r}, allowed: keys before a token, or before and after, such as 1023 or 8,8"
        raise argparse.ArgumentTypeError(words)
    left, right = (None if n is None else int(n) for n in found.groups())
    return left, right


def add_window(sub: argparse.ArgumentParser, how: str = "") -> None:
    """Add the causal mask, the window and the soft cap; how: the first word of their help."""
    causal, ends = "each token sees the keys up to its own", "keys before a token, and after it"
    sub.add_argument("--causal", action="store_true", help=f"{how}{causal}")
    of_window = {"type": window, "metavar": "LEFT[,RIGHT]", "help": f"{how}{ends}"}
    sub.add_argument("--window", default=(None, None), **of_window)
    sub.add_argument("--soft-cap", type=float, help=f"{how}cap of the scores, such as 50")


def add_variant(sub: argparse.ArgumentParser) -> None:
    """Add which attention is computed."""
    add_window(sub)
    sub.add_argument("--sinks", action="store_true", help="a logit beside the keys of each head")
    sub.add_argument("--alibi", action="store_true", help="scores fall with distance, by head")
    sub.add_argument("--mask", action="store_true", help="a bit for each token and key")


def variant_of(options: argparse.Namespace, spec: Kernel | None = None) -> AttentionVariant:
    """Return the variant of the options of `add_variant`, or of `add_window`.

    Raises: ValueError naming options that do not go together, or what a kernel does not compute.
    """
    (left, right), cap = options.window, options.soft_cap
    one_token = spec is not None and spec.operation == "decode"
    if right is not None and (options.causal or one_token):
        why = "--causal" if options.causal else f"the one token of a {spec.operation}"
        raise ValueError(f"--window has RIGHT = {right}, allowed with {why}: LEFT alone")
    if cap is not None and not 0 < cap < math.inf:
        raise ValueError(f"--soft-cap = {cap:g}, allowed: a positive number")
    on = {name: getattr(options, name, False) for name in ("sinks", "alibi", "mask")}
    variant = AttentionVariant(options.causal, left, right, cap, **on)
    if spec is not None and (reason := spec.lacks(variant)):
        raise ValueError(f"{reason}; {_kernels_with(variant, spec.operation)}")
    return variant


def _kernels_with(variant: AttentionVariant, operation: str) -> str:
    """Return which kernels of an operation compute a variant, in words."""
    from labkernels.kernels.registry import discover

    known = [item for item in discover().values() if item.operation == operation]
    names = [item.name for item in known if item.language != "torch" and not item.lacks(variant)]
    return f"{variant.label}: {', '.join(names) or f'no kernel of {operation}'}"
