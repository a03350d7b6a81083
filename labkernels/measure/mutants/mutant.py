"""A mutant: one edit of a kernel's source, and the kernel that results."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkernels.cuda.compiler import cache
from labkernels.cuda.host.compiler import INCLUDE_DIRS
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.registry import discover

KERNEL = "kernel.cuh"  # the same name in every kernel's folder
_TEXT = Path(__file__).with_name("mutants.toml").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Edit:
    """An edit: `by` replaces the only match of `pattern` in a file of the include path."""

    file: str
    pattern: str
    by: str


@dataclass(frozen=True)
class Mutant:
    """A bug: what it does, where one like it was reported, and the edit for each kernel.

    needs: what a workload must have to show the bug, besides several splits and a last step that is
    not full: pages beyond 2^32 elements, a request without keys, or a causal mask.
    """

    name: str
    bug: str
    source: str
    edits: Mapping[str, Edit]
    needs: str = ""

    def spec(self, kernel: str) -> Kernel:
        """Return the kernel with this bug, for `kernel=` of a function in ops.

        Raises: ValueError naming the kernels that the bug has an edit for.
        """
        if kernel not in self.edits:
            allowed = ", ".join(self.edits)
            raise ValueError(f"kernel = {kernel!r}, allowed for {self.name!r}: {allowed}")
        return mutated(discover()[kernel], self.edits[kernel])


def read(operation: str) -> dict[str, Mutant]:
    """Return the mutants of an operation by name, which mutants.toml describes."""
    found = {}
    for name, facts in tomllib.loads(_TEXT)[operation].items():
        edits = {
            kernel: Edit(edit["file"], edit["pattern"], edit["by"])
            for edit in facts["edits"]
            for kernel in edit["kernels"]
        }
        source, needs = f"https://github.com/{facts['source']}", facts.get("needs", "")
        found[name] = Mutant(name, facts["bug"], source, edits, needs)
    return found


def mutated(spec: Any, edit: Edit) -> Kernel:
    """Return a kernel whose source has one edit; the cache of compiled kernels holds the file.

    Raises: ValueError unless the pattern has exactly one match.
    """
    name = spec.header if edit.file == KERNEL else edit.file
    original = next(path for root in INCLUDE_DIRS if (path := root / name).exists())
    text, found = re.subn(edit.pattern, edit.by, original.read_text(), flags=re.DOTALL)
    if found != 1:
        raise ValueError(f"pattern = {edit.pattern!r}, found {found} times in {name}, allowed: 1")
    return spec.with_overlay(cache.overlay({name: text}))
