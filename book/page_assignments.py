"""The assignments in CUDA that a page checks: a box below each task, and what its Python must know.

Python in the page runs the graders of the package (`python/in_page.py`). The results of sources
that are the same for every reader, the starter's, those of usual mistakes and the kernel's own, are
computed here, so that no reader's browser compiles them.
"""

import base64
import dataclasses
import html
import importlib
import io
import json
from pathlib import Path

import numpy as np

from labkernels.chapters import exercises
from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.overlay import region
from labkernels.chapters.primers import calls, fragments, machine, pipeline, small_attention
from labkernels.cuda.compiler import cache
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.cuda.host.build import HostKernelError
from labkernels.widgets import small

GRADERS = ("attention", "fragments", "pipeline")  # of which everything runs without torch
AUDIT_BOX = """```{raw} html
<div class="lab-widget lab-ask" data-lab-widget="audit"><p>With JavaScript on, this page judges a
file; elsewhere, <code>labkernels audit dump.npz</code> does.</p></div>
```"""
# The kernels that readers step through, by grader.
_STEPPED = {"attention": small_attention.ATTEND, "pipeline": pipeline.SUM_UP}
_PACKAGE = Path(exercises.__file__).parents[1]


def names() -> list[str]:
    """Returns the assignments in CUDA that pages check, in their order."""
    return [name for name in exercises.names() if exercises.get(name).grader in GRADERS]


def kernels() -> dict[str, Specialization]:
    """Returns the kernels that answers change, by the names that the page's Python gives them."""
    small = (small_attention.ATTEND, small_attention.MERGE, pipeline.SUM_UP, *fragments.KERNELS)
    made = {kernel.instance: kernel.made((machine.FOLDER,)) for kernel in small}
    for instance in calls.INSTANCES:
        params, block = "calls::Params", (calls.THREADS, calls.SMEM_BYTES)
        made[instance] = Specialization(
            calls.HEADER, instance, params, *block, include_dirs=(machine.FOLDER,)
        )
    return made


def asset(name: str) -> str:
    """Returns the name of the file that has an assignment's known results."""
    return f"assignment.{name}"


def known(name: str) -> bytes:
    """Returns the results of the sources that the check of an assignment runs for every reader.

    An .npz whose names are SOURCE/RESULT, as `in_page.know` reads them.
    """
    texts = [path.read_bytes() for path in sorted(_PACKAGE.rglob("*")) if _counts(path)]
    key = cache.content_key(name, Path(__file__).read_bytes(), *texts)
    return cache.entry(f"pageknown-{key}.npz", lambda _: _known(exercises.get(name))).content


def _counts(path: Path) -> bool:
    return path.suffix in (".py", ".toml", ".cuh") and "__pycache__" not in path.parts


def _known(exercise: Exercise) -> bytes:
    grader = importlib.import_module(f"labkernels.chapters.exercises.graders.{exercise.grader}")
    alone = dataclasses.replace(exercise, adapter="")  # the kernel calls its own lines itself
    sources = [(alone, region(*exercise.place)), (exercise, exercise.starter)]
    sources += [(exercise, mistake.source) for mistake in exercise.mistakes if not mistake.fault]
    found: dict[str, np.ndarray] = {}
    for asked, source in sources:
        key = cache.content_key(f"{exercise.name}\n{source}")[:16]
        try:
            results = grader.run(asked, source)
        except HostKernelError as error:
            results = {"fault": np.array(str(error))}
        found |= {f"{key}/{name}": np.asarray(value) for name, value in results.items()}
    out = io.BytesIO()
    np.savez_compressed(out, **found)
    return out.getvalue()


def write(folder: Path) -> None:
    """Writes a file into a folder for each assignment, which holds what is known of it."""
    for name in names():
        text = json.dumps(base64.b64encode(known(name)).decode())
        head = f"(globalThis.lab_assets ??= {{}})[{asset(name)!r}]"
        (folder / f"{asset(name)}.js").write_text(f"{head} = {text};\n")


def steps(name: str) -> dict[str, object]:
    """Returns what a stepper shows of a kernel, {} for none: threads, buffers in rows of 128 bytes.

    The threads that merge two states meet nowhere, so that nothing is to be seen there.
    """
    kernel = _STEPPED.get(exercises.get(name).grader)
    if kernel is None or name == "split_and_merge":
        return {}
    block = {"threads": kernel.threads, "smem_bytes": kernel.smem.total}
    return {"kernel": kernel.name, **block, "tiles": small.tiles(kernel)}


def fold(name: str) -> str:
    """Returns the element of a page in which a reader writes an answer, in a closed fold."""
    more = ", check them, and step through them" if steps(name) else " and check them"
    summary = f"Write your lines here{more}."
    opens = f'<details class="lab-offer"><summary>{summary}</summary>'
    return box(name).replace("<div ", f"{opens}<div ", 1).replace("</div>", "</div></details>")


def box(name: str) -> str:
    """Returns the element of a page in which a reader writes an answer."""
    exercise = exercises.get(name)
    parts = {"name": name, "starter": exercise.starter, "hints": exercise.hints}
    if steps(name):
        parts["steps"] = steps(name)
    given = html.escape(json.dumps(parts, separators=(",", ":")))
    call = f"<code>exercises.check({html.escape(json.dumps(name))}, …)</code>"
    return (
        f'```{{raw}} html\n<div class="lab-widget lab-ask" data-lab-widget="assignment" '
        f'data-assignment="{given}"><p>With JavaScript on, this page compiles your lines and '
        f"checks them; in JupyterLab, {call} does.</p></div>\n```"
    )
