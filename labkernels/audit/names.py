"""The names of tensors in many tools, and which tensors of a file are read.

NAMES and REFUSED follow the arguments of FlashInfer 0.7, flash-attn 2.8, FlashAttention 3 and 4,
FlashMLA, transformers 4.57, vLLM 0.33, SGLang 0.5, TransformerEngine 2.20, JAX and torch.
"""

import math
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from labkernels.units import GiB, require_choice

_TABLES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
NAMES: dict[str, tuple[str, ...]] = {ours: tuple(of) for ours, of in _TABLES["names"].items()}
# Names of what is not judged: their other names, the values that change nothing, and the reason.
REFUSED: dict[str, tuple[tuple[str, ...], tuple, str]] = {
    name: (tuple(row.get("names", ())), tuple(row.get("neutral", ())), row["why"])
    for name, row in _TABLES["refused"].items()
}
_BY_NAME = {
    other: name
    for name, others in (NAMES | {name: row[0] for name, row in REFUSED.items()}).items()
    for other in (name, *others)
}
# Words of a name that nobody knows, which say that it may change what is right.
_MAY_MATTER = re.compile(
    "(?<![a-z])(masks?|bias|windows?|win|sliding|(soft)?cap(ping)?|sinks?|alibi|slopes?|"
    "p?drop(out)?|chunk(ed)?|mod|sparse|ranges?|valid|positions?|extra|lookback|rope|rotary|"
    "temp(erature)?|(de)?scal(es?|ing|ar)|zero|zp|lens|lengths|seqlens?|indptr|indices|ptr|cnt|"
    "leftpad|padding|causal|bottom|new)(?![a-z])"
)
DEFAULT_GIB = 4.0
_MOST_DIMENSIONS = 8


def canonical(name: str) -> str | None:
    """Return our name for a tensor; None for an unknown one. The last part of a path counts."""
    return _BY_NAME.get(_last(name))


def _last(name: str) -> str:
    return name.replace("/", ".").rpartition(".")[2].lower()


def may_matter(name: str, value) -> bool:
    """Return whether a value that was not read may change what is right, by the words of its name.

    >>> may_matter("attn_window", 4), may_matter("attn_window", -1), may_matter("max_seq_lens", 9)
    (True, False, False)
    """
    known = canonical(name) or _MAY_MATTER.search(_last(name))
    known = known or ("_len" in name.lower() and getattr(value, "ndim", 0))
    neutral = (0, -1, 1) if re.search("scal|temp", name.lower()) else (0, -1)
    is_neutral = isinstance(value, int | float) and value in neutral
    return bool(known) and not is_neutral and not re.search("max.*len", name.lower())


def parse_map(pairs: list[str] | None) -> dict[str, str]:
    """Return the map of names that "ours=theirs" of a command line gives.

    Raises: ValueError for another form.
    """
    found = {}
    for pair in pairs or ():
        ours, equals, theirs = pair.partition("=")
        if not (equals and theirs):
            raise ValueError(f"map = {pair!r}, allowed: ours=theirs, such as q=query")
        require_choice("map", ours, tuple(NAMES))
        found[ours] = theirs
    return found


@dataclass
class Take:
    """Which tensors of a file are read.

    map: the file's names for some of ours. limit_bytes: for all tensors together. unread: tensors
    that are not needed, or functions that read them.
    """

    map: dict[str, str] = field(default_factory=dict)
    limit_bytes: float = DEFAULT_GIB * GiB
    unread: dict = field(default_factory=dict)
    bytes: int = 0

    def ours(self, theirs: str) -> str | None:
        """Return our name for a tensor; None for one that is not needed."""
        for ours, mapped in self.map.items():
            if mapped == theirs:
                return ours
        ours = canonical(theirs)
        return None if ours in self.map else ours

    def chosen(self, given: dict) -> dict[str, str]:
        """Return the names of one file that are to be read, each with ours; others are unread.

        A name that is ours to the letter goes before other names of the same thing.
        Raises: ValueError where two have the same right to one of our names.
        """
        candidates: dict[str, list[str]] = {}
        for theirs in given:
            if (ours := self.ours(theirs)) is not None:
                candidates.setdefault(ours, []).append(theirs)
        found = {}
        for ours, all_of_it in candidates.items():
            best = [x for x in all_of_it if x == ours] or [x for x in all_of_it if _last(x) == ours]
            best = best or all_of_it
            if len(best) > 1 and ours in NAMES:
                named = ", ".join(best[:4])
                allowed = f"one, or --map {ours}=NAME"
                raise ValueError(f"{len(best)} tensors may be {ours}: {named}; allowed: {allowed}")
            found[best[0]] = ours
        self.unread |= {theirs: x for theirs, x in given.items() if theirs not in found}
        return found

    def claim(self, theirs: str, shape, item_bytes: float) -> int:
        """Return the bytes of a tensor, and add them to the sum, before a byte is read.

        Raises: ValueError for a shape of no tensor, or if all tensors together exceed the limit.
        """
        sizes = [int(n) for n in shape]
        if len(sizes) > _MOST_DIMENSIONS or any(n < 0 for n in sizes):
            raise ValueError(f"tensor {theirs} has shape {tuple(sizes)[:9]}, allowed: tensors")
        size = math.ceil(math.prod(sizes) * item_bytes)
        self.bytes += size
        if not self.bytes <= self.limit_bytes:
            raise ValueError(
                f"tensor {theirs} of {math.prod(sizes):.3g} elements makes {self.bytes / GiB:.3g} "
                f"GiB in all, allowed: {self.limit_bytes / GiB:g} GiB; --max-gib raises it"
            )
        return size
