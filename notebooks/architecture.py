# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Architecture
#
# This page says how the code is laid out, why, and where a thing that you look for must be.
# The pictures and tables are computed from the package as it is now.

# %% tags=["hide-input"]
import runpy
import sys
import tomllib
from pathlib import Path

import grimp
import matplotlib.pyplot as plt
import pandas as pd

import labkernels
from labkernels import plots

PACKAGE = Path(labkernels.__file__).parent
ORIGIN = "computed on this machine, from the imports"

# %% [markdown]
# ## The idea
#
# 1. An **operation** is a folder: `kernels/decode`, `prefill`, `mla`, `backward`, `append`, `merge_states`. It holds its shapes, its random inputs, its verb, its schedule and its launch.
# 2. A **kernel** is a folder in the folder of its operation, named after what computes: `fma`, `mma`, `wgmma`, `triton`, `reference`.
# 3. An operation and a kernel have one front door each, `OPERATION` and `KERNEL`. What works on all of them (judge, benchmark, checksums, profiler, contract tests, command line) is written once, against these objects, and finds them by looking into the folders.
# 4. Which attention is meant (`AttentionVariant`) and where a kernel may round (`NumericPolicy`) are said once, on the ground floor, and are read by kernels, schedules, oracle, error model and verdict alike.
# 5. `numerics` is a stair of four steps, and each uses only those below it: truth, emulation, error, verdict.
# 6. What is observed is of three kinds, which are the folders of `data`: performance, accuracy, hardware.
#
# ## Floors
#
# A floor is a folder or a file directly in `labkernels/`, and imports only floors below it.
# The order is written down once, in `pyproject.toml`, where a test reads it; {numref}`floors` reads the same lines, and draws the imports that it finds.


# %% tags=["hide-input"]
graph = grimp.build_graph("labkernels", exclude_type_checking_imports=True)
contracts = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
(layers,) = [c["layers"] for c in contracts if c.get("containers") == ["labkernels"]]


def rooms_in(floor):
    """The folders of a floor in which there are modules."""
    folders = [child for child in graph.find_children(f"labkernels.{floor}")
               if graph.find_children(child)]  # fmt: skip
    return " · ".join(sorted(folder.rpartition(".")[2] for folder in folders))


# %% mystnb={"figure": {"caption": "Imports point down. An arrow that others imply is left out, and one that passes behind a floor does not end there; below a floor's name stand its folders.", "name": "floors"}, "image": {"alt": "Boxes in rows, each a floor of the package, joined by arrows that all point down. The command line is at the top; units and places are at the bottom.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
floors = pd.DataFrame(
    {"room": floor, "layer": layer, "words": rooms_in(floor)}
    for layer, beside in enumerate(layers)
    for floor in beside.split(" | ")
)
pairs = {
    (importer.split(".")[1], imported.split(".")[1])
    for importer in graph.modules - {"labkernels"}
    for imported in graph.find_modules_directly_imported_by(importer) - {"labkernels"}
}
imports = pd.DataFrame(sorted(p for p in pairs if p[0] != p[1]), columns=["importer", "imported"])
plots.rooms_by_layer(floors, imports, origin=ORIGIN)
plt.show()

# %% [markdown]
# `kernels`, `numerics` and `measure` have layers of their own inside, and the operations do not know each other (backward alone runs a prefill, whose outputs it needs).
# `budget` and what lies below it use the standard library alone, and so do all kernels' specs: a ledger needs neither a GPU nor torch.
# `plots` draws tables and knows no kernel: a new one has a colour by what computes it.
#
# ## Five questions of a newcomer
#
# The answers are paths, and the cell checks that each is there.

# %% tags=["hide-input"]
answers = {
    "Where is a decode kernel?": "kernels/decode/mma/kernel.cuh",
    "Where is a measurement?": "experiments/performance/decode_tensor_cores.py",
    "Where is its plot?": "plots/performance/times.py",
    "Where is an error bound?": "numerics/error/bounds.py",
    "Where is a chapter's helper?": "chapters/two_roads.py",
}
assert all((PACKAGE / path).is_file() for path in answers.values())
table = pd.DataFrame(answers.items(), columns=["question", "in labkernels/"])
plots.table(table, "five-questions")

# %% [markdown]
# ## How a call goes
#
# A call goes one way: **check** its tensors, **choose** a kernel and a tile, **schedule** the blocks, **launch** what was compiled, **run** it.
# What depends on facts alone (formats, sizes, the GPU, what the caller names) is checked, chosen and scheduled once and then remembered: a kernel's ledgers are built when a choice is first made, and a warm call enters neither `kernels/choice.py` nor a schedule. It places pointers and launches.
# The cell follows a warm `decode` of two requests through the package.


# %% tags=["hide-input"]
def entered(call):
    """The functions of labkernels that a call enters, in order, each with its file."""
    found = []

    def note(frame, event, _):
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if event == "call" and PACKAGE in path.parents and not name.startswith("<"):
            found.append((path.relative_to(PACKAGE).as_posix(), name))

    sys.setprofile(note)
    call()
    sys.setprofile(None)
    return pd.DataFrame(found, columns=["file", "function"])


# %% tags=["hide-input", "nbval-ignore-output"]
flow = runpy.run_path(f"{PACKAGE.parent}/tests/ops/test_call_flow.py")
warm = flow["CALLS"]["decode"]()
warm()  # compiles, or finds what was compiled, and makes the choice
by_file = entered(warm).groupby("file", sort=False).function
shown = by_file.agg(lambda names: ", ".join(dict.fromkeys(names))).reset_index()
plots.table(shown.rename(columns={"function": "functions, in the order of entry"}), "one-call")

# %% [markdown]
# A test keeps ceilings on what a warm call may cost in Python, so that no layer in between grows back.
# Here are the calls that it makes, what they cost now, and its ceilings; a move is a change of file, on a call or a return.

# %% tags=["hide-input", "nbval-ignore-output"]
rows = []
for name, call in flow["CALLS"].items():
    now, most = flow["counted"](call()), flow["CEILINGS"][name]
    rows.append([name, *(f"{n} of at most {limit}" for n, limit in zip(now, most, strict=True))])
costs = pd.DataFrame(rows, columns=["warm call", "functions", "files", "moves"])
plots.table(costs, "ceilings")

# %% [markdown]
# ## Adding something
#
# Each of these is added in one place, and found there; nothing else is edited.
# [CONTRIBUTING](repo:CONTRIBUTING.md) says what the files must hold.
#
# :::{table} What is added where
# :name: adding
# :class: stacked
#
# | To add | Write | Found by |
# |---|---|---|
# | a kernel | a folder `kernels/<operation>/<name>/`: `spec.py` with `KERNEL`, and its source | the choice, contract and compile tests, `labkernels budget`, checksums, the experiments of its operation, plots |
# | an operation | a folder `kernels/<operation>/`: `workload.py`, `inputs.py`, `api.py`, `kernel.py`, `operation.py` with `OPERATION`, and a kernel | the judge, the benchmark, checksums, the profiler; its verb is named in `ops/__init__.py` |
# | an experiment | a file `experiments/<kind>/<name>.py` with `EXPERIMENT`, and `records/tables/<table>.json` for a table with new columns | `labkernels record`; its rows go to `data/<kind>/` |
# | a peer | a file `measure/peers/<library>.py` with `PEERS` | the benchmarks of every operation that it has a step for |
# | a GPU | a block in `hardware/gpus.toml` | budgets, the choice of kernels, `labkernels doctor` |
# | a command | a file `cli/<name>.py` with `HELP` and `run` | `labkernels --help` |
# | an importer | a file `audit/importers/<tool>.py` with `takes` and `read` | `labkernels audit`, for the files that it takes |
# | a chapter | `notebooks/<idea>.py`, a line in `book/_toc.yml`; what is too long for a cell in `chapters/<idea>.py` | `make book` |
# | an assignment | a file `chapters/exercises/assignments/<name>.toml`, and a line in `book/assignments.md` | `exercises.check`, `make course` |
# :::
