"""Kernels with one line changed: what the checker and the contract are there to find."""

import dataclasses
import functools
import re
import shutil

from labkernels.cuda import host
from labkernels.cuda.cache import content_key
from labkernels.cuda.host_compiler import INCLUDE_DIRS
from labkernels.kernels import spec as specs
from tests.kernels.contract import CUDA

VOCABULARY = INCLUDE_DIRS[0] / "lab"


def use_mutant(monkeypatch, folder, kernel: str, file: str, pattern: str, by: str) -> None:
    """Let ops run `kernel` from a copy in which the one match of `pattern` has become `by`."""
    original = (VOCABULARY.parent if file.startswith("lab/") else CUDA[kernel].folder) / file
    text, found = re.subn(pattern, by, original.read_text(), flags=re.DOTALL)
    assert found == 1, f"{pattern!r} is {found} times in {file}: the test must follow the source"
    # the name enters the cache's key, which knows the headers of the original alone
    home = folder / f"mutant_{content_key(file, text)}"
    (home / "lab").mkdir(parents=True)
    for header in VOCABULARY.glob("*.cuh"):
        shutil.copy(header, home / "lab")
    (home / "lab" / "lab").symlink_to(home / "lab")  # headers find each other here, not there
    shutil.copy(CUDA[kernel].folder / "kernel.cuh", home)
    (home / file).write_text(text)
    spec = dataclasses.replace(CUDA[kernel], folder=home)
    monkeypatch.setattr(specs, "discover", lambda: {kernel: spec})
    monkeypatch.setattr(host, "build", functools.partial(host.build, include_dirs=[folder]))
