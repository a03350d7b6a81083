"""Finds and executes the notebooks: NAME.py is the source, NAME.ipynb the executed copy."""

import hashlib
import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path

import jupytext
import nbformat
import page_figures
import plain
import zmq
from ipykernel.kernelspec import get_kernel_dict
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
RUNNERS = ("notebook_io.py", "page_figures.py")  # the scripts here that shape a run
CELL_TIMEOUT_S = 600
WIDGET = "application/vnd.jupyter.widget-view+json"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # what IPython puts around the words of a traceback
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, in its repr: another in every run


def sources() -> list[Path]:
    """Returns the percent scripts of the notebooks by name, without templates (`_` in front)."""
    return sorted(p for p in NOTEBOOKS.glob("*.py") if not p.name.startswith("_"))


def execute(source: Path, *, for_pages: bool = True) -> nbformat.NotebookNode:
    """Returns the notebook of a percent script, after this interpreter ran its cells in notebooks/.

    use_this_interpreter, called once per process, points Jupyter at the interpreter.
    for_pages: whether each figure must have its versions for the pages.
    Raises: SystemExit with the cell's error.
    """
    notebook = jupytext.read(source, fmt="py:percent")
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,  # one print may arrive in two pieces
        resources={"metadata": {"path": str(NOTEBOOKS)}},
        # "disabled", the default, makes every kernel print a warning
        config=Config(
            KernelManager={"transport_encryption": "auto" if zmq.has("curve") else "disabled"}
        ),
    )
    try:
        executed = without_live_widgets(client.execute())
        if for_pages:
            page_figures.require_all(executed)
        return executed
    except CellExecutionError as error:
        message = COLOUR.sub("", str(error))
        raise SystemExit(f"notebooks/{source.name}: a cell failed.\n\n{message}") from None
    except ValueError as error:
        message = COLOUR.sub("", str(error))
        raise SystemExit(f"notebooks/{source.name}: {message}") from None


def without_live_widgets(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Removes widgets that need a running kernel; a page has JavaScript of its own for them."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
    return notebook


def edition(folder: Path) -> dict[str, Path]:
    """Returns the copies that another machine executed, by name; each has its script's cells.

    Raises: SystemExit naming the notebooks that are missing, or of another state of their scripts.
    """
    copies = {source: folder / f"{source.stem}.ipynb" for source in sources()}
    stale = [source.name for source, copy in copies.items() if _cells(copy) != _cells(source)]
    if stale:
        raise SystemExit(f"{folder} lacks these as they are now: {', '.join(stale)}")
    return {source.stem: copy for source, copy in copies.items()}


def _cells(path: Path) -> list[tuple[str, str]] | None:
    if not path.exists():
        return None
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def pair(executed: Path, name: str) -> nbformat.NotebookNode:
    """Returns an executed copy as it is committed beside its script."""
    notebook = plain.plain(nbformat.read(executed, as_version=4), name)
    notebook.metadata.language_info.pop("version", None)
    page_figures.without_versions(notebook)
    return notebook


def write_pair(executed: Path, name: str) -> Path:
    """Writes an executed copy as the committed pair, the same bytes for the same cells."""
    target = NOTEBOOKS / f"{name}.ipynb"
    text = nbformat.writes(pair(executed, name))
    whole = target.with_suffix(".ipynb.part")  # so that the target is never half written
    whole.write_text(ADDRESS.sub(" at 0x000000000000", text) + "\n", encoding="utf-8")
    return whole.replace(target)


def use_this_interpreter(scratch: Path, *, for_pages: bool = True) -> None:
    """Points Jupyter and IPython at `scratch`, with one kernel, and not at a home folder.

    for_pages: whether kernels also draw each figure's versions for the pages.
    """
    spec = scratch / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True, exist_ok=True)
    spec.write_text(json.dumps(get_kernel_dict()))
    os.environ["JUPYTER_PATH"] = str(scratch)
    os.environ["IPYTHONDIR"] = str(scratch / "ipython")
    if for_pages:
        page_figures.begin_in(scratch / "ipython")
    os.environ["TQDM_DISABLE"] = "1"  # a page shows no progress bars
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )


def input_digest() -> str:
    """Returns a hash of all that a notebook's outputs may depend on, except its own source."""
    digest = hashlib.sha256()
    files = [p for p in (ROOT / "labkernels").rglob("*") if "__pycache__" not in p.parts]
    files += [p for p in (ROOT / "data").rglob("*") if p.name != ".lock"]
    files += [*(ROOT / "book/widgets").rglob("*"), *(ROOT / "book/versions").glob("*.py")]
    files += [ROOT / "book" / name for name in RUNNERS]
    for path in sorted(p for p in files if p.is_file()):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    packages = sorted(f"{d.name}=={d.version}" for d in metadata.distributions())
    digest.update("\n".join([sys.version, *packages]).encode())
    return digest.hexdigest()
