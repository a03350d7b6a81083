"""What the pages' Python runs: `check` of an assignment, and the audit of a file.

The modules of labkernels are those of the package. Only what reaches the machine below is another:
a kernel is compiled and launched by the page, and results that every reader needs, those of the
starters, of the usual mistakes and of the reference, were computed when the book was built.
"""

import argparse
import base64
import functools
import importlib
import io
import json
import tempfile
from pathlib import Path

import _host
import numpy as np

from labkernels.audit import dumps
from labkernels.chapters.exercises import checking, compiled, exercise, overlay, report
from labkernels.chapters.exercises.graders.attention import REQUESTS
from labkernels.chapters.primers import machine, pipeline, small_attention
from labkernels.cli import audit as command
from labkernels.cuda.host.build import HostKernelError

_BYTES = 4  # of a pointer, an int and a float on wasm32
_NO_BANKS = "JupyterLab counts them; this page does not."
_NO_NVRTC = "NVRTC does not run in a page"
_OVERLAYS: dict[Path, dict[str, str]] = {}
_KNOWN: dict[str, dict[str, np.ndarray] | HostKernelError] = {}
_TILES = 5  # of the sum through which a reader steps
_traced = False  # whether the page records the next launch


class Wanted(BaseException):
    """The page has to compile a kernel first, and then asks the same again."""


def check(name: str, answer: str) -> dict:
    """Return what `exercises.check` says."""
    report = checking.check(name, answer)
    return {"passed": report.passed, "lines": report.lines}


def step(name: str, answer: str) -> dict:
    """Let the page record a run of a kernel with the answer in it; return its error and sources."""
    global _traced
    asked = exercise.get(name)
    header = asked.place[0]
    lines = (machine.FOLDER / header).read_text(encoding="utf-8").splitlines()
    found = {"error": report.refused(answer, prints=False) or None}
    found["sources"] = {header: lines, report.ANSWER: answer.splitlines()}
    if found["error"]:
        return found
    folders = (overlay.folder_with(*asked.place, answer, after_it=asked.adapter),)
    _traced = True
    try:
        if asked.grader == "pipeline":
            pipeline.run(_TILES, folders)
        else:
            small_attention.attend(REQUESTS[1], folders)
    except HostKernelError as error:
        found["error"] = " ".join(report.in_readers_words(str(error)))
    finally:
        _traced = False
    return found


def audit(file: str, words: list[str]) -> dict:
    """Return what `labkernels audit FILE` prints, with the further words of its command line."""
    parser = argparse.ArgumentParser(prog="labkernels audit", exit_on_error=False)
    command.add_options(parser)
    try:
        options = parser.parse_args([file, *words])
        found = dumps.audit(options.file, scale=options.scale, **command.how_read(options))
    except (ValueError, OSError, argparse.ArgumentError, SystemExit) as error:
        return {"answer": "", "text": f"labkernels: {error}".replace(f"{Path(file).parent}/", "")}
    return {"answer": found.answer, "text": found.summary(verbose=options.verbose)}


def know(results: bytes) -> None:
    """Take the results of known sources: an .npz whose names are SOURCE/RESULT or SOURCE/fault."""
    with np.load(io.BytesIO(results)) as given:
        for name in given.files:
            source, _, result = name.partition("/")
            if result == "fault":
                _KNOWN[source] = HostKernelError(str(given[name]))
            else:
                _KNOWN.setdefault(source, {})[result] = given[name]


def _run_in_page(header, kernel, arguments, *, grid, threads, **how) -> None:
    """Launch a kernel of a primer on the page's CPU machine, as `machine.run` does elsewhere."""
    global _traced
    written, before = set(how.get("writes", ())), how.get("before", {})
    fields, tensors = machine.fields(arguments, before), []
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            content = base64.b64encode(value.tobytes()).decode()
            tensors.append({"name": name, "bytes": content, "written": name in written})
    edits: dict[str, str] = {}
    for folder in how.get("folders", ()):
        edits = _OVERLAYS.get(folder, {}) | edits
    said = _asked(
        {
            "kernel": {
                "header": header,
                "instance": kernel,
                "params": f"{kernel.partition('::')[0]}::Params",
            },
            "edits": edits,
            "launch": {
                "grid": (*grid, 1, 1)[:3],
                "threads": threads,
                "smem_bytes": how.get("smem_bytes", 0),
                "params_bytes": _BYTES * len(fields),
                "fields": fields,
            },
            "tensors": tensors,
            "traced": _traced,
        }
    )
    _traced = False  # a further launch of this turn is not recorded
    for name, content in said["written"].items():
        given = np.frombuffer(base64.b64decode(content), np.uint8)
        arguments[name].reshape(-1).view(np.uint8)[:] = given


def _asked(request: dict) -> dict:
    """Return the page's answer.

    Raises: Wanted; HostKernelError.
    """
    said = json.loads(_host.call(json.dumps(request).encode()))
    if said.get("wanted"):
        raise Wanted
    if "error" in said:
        raise HostKernelError(f"{request['kernel']['instance']}{said['error']}")
    return said


def _overlay_in_page(texts: dict[str, str]) -> Path:
    """Return a path that stands for changed sources."""
    path = Path("/overlay", _key("".join([*texts, *texts.values()])))
    _OVERLAYS[path] = dict(texts)
    return path


def _key(source: str) -> str:
    return overlay.cache.content_key(source)[:16]


def _knowing(run):
    """Return a grader's `run` that has the results of known sources at hand."""

    def run_or_known(asked, answer):
        found = _KNOWN.get(_key(f"{asked.name}\n{answer}"))
        if isinstance(found, HostKernelError):
            raise found
        return run(asked, answer) if found is None else dict(found)

    return run_or_known


def _of_own_width(function, position: int):
    """Return a function of NumPy whose argument at a position may be any whole numbers.

    An index has 32 bits here, and NumPy does not narrow the numbers of 64 bits by itself.
    """

    @functools.wraps(function)
    def narrowed(*given, **named):
        wide = np.asarray(given[position])
        narrow = wide.astype(np.intp) if wide.dtype.kind in "iu" else wide
        return function(*given[:position], narrow, *given[position + 1 :], **named)

    return narrowed


def _set_up() -> None:
    np.repeat, np.bincount = _of_own_width(np.repeat, 1), _of_own_width(np.bincount, 0)
    machine.run, machine.PRINTS = _run_in_page, False
    machine.has_gpu = lambda arch="": False
    overlay.cache.overlay = _overlay_in_page
    compiled.nvrtc.available = lambda: _NO_NVRTC
    for name in ("attention", "fragments", "pipeline"):
        grader = importlib.import_module(f"labkernels.chapters.exercises.graders.{name}")
        grader.run = _knowing(grader.run)
        places = [exercise.get(each).place[1] for each in exercise.names()]
        grader.NO_BANKS = dict.fromkeys(places, _NO_BANKS)


def answer(question: str) -> str:
    """Return the answer to a question of the page, both as JSON."""
    asked = json.loads(question)
    try:
        if asked["ask"] == "check":
            return json.dumps(check(asked["name"], asked["answer"]))
        if asked["ask"] == "step":
            return json.dumps(step(asked["name"], asked["answer"]))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, Path(asked["file"]).name)
            path.write_bytes(Path("/dropped").read_bytes())
            return json.dumps(audit(str(path), asked["words"]))
    except Wanted:
        return json.dumps({"wanted": True})


_set_up()
