"""Traces a kernel of the ladder: when the loading warp and the warpgroups use each stage."""

import ctypes

from labkernels import ops
from labkernels.cuda import launch
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure import ladder
from labkernels.measure.mutants.mutant import Edit, mutated

ROWS, N_NOTES = 128, 1024
RINGS = ("Q", "K", "V")  # in the order of their addresses
_NOTES = f"""struct Note {{ long long what, ring, n, thread; }};
extern "C" {{
[[gnu::visibility("default"), gnu::used]] inline Note lab_notes[{N_NOTES}];
[[gnu::visibility("default"), gnu::used]] inline int lab_n_notes;
}}
LAB_DEVICE void note(char what, const void* ring, u32 n) {{
  if (thread_x() % 128 == 0 && lab_n_notes < {N_NOTES})
    lab_notes[lab_n_notes++] = {{what, reinterpret_cast<long long>(ring), n, thread_x()}};
}}
"""
# Notes a use of a ring after its wait has ended, and a release just before it is announced.
_NOTED = Edit(
    "lab/hopper/pipeline.cuh",
    r"(// Waits until the stage of use n has been read.*?;)(\n}.*?consumer_wait.*?;)"
    r"(\n}.*?consumer_release[^{]*{\n)",
    _NOTES + r"\1 note('a', &ring, n);\2 note('w', &ring, n);\3  note('r', &ring, n);" + "\n",
)
_WORDS = {"a": "ask", "w": "begin", "r": "end"}


class _Note(ctypes.Structure):
    _fields_ = [(name, ctypes.c_longlong) for name in ("what", "ring", "n", "thread")]


def trace(rung: str, blocks: int) -> list[dict[str, int | str]]:
    """Run a rung's kernel on one tile of rows and some blocks of keys; return what happened.

    The events come in the order in which the CPU machine ran them. An event has four entries:
    warpgroup, which is -1 for the warp that loads; what, which is "ask" for a tile, or "begin" or
    "end" for its use; of, which is "Q", "K" or "V"; and block, the number of the tile.
    """
    spec = next(found for found in ladder.rungs("prefill") if found.name == rung).spec
    kernel, work = mutated(spec, _NOTED), _workload(spec, blocks)
    case = prefill_inputs(work, ExactNormal(0))
    how = {"kernel": kernel, "scale": case.scale, "splits": 1}
    with launch.collected() as listed:
        ops.prefill(case.q, case.kv, case.cu_seqlens_q, **how)
    made = listed[0].launch
    library = launch.cpu_kernel(made.specialization, made.gpu.arch, made.checks).library
    built = ctypes.CDLL(str(library))
    n_notes = ctypes.c_int.in_dll(built, "lab_n_notes")
    n_notes.value = 0
    ops.prefill(case.q, case.kv, case.cu_seqlens_q, **how)
    notes = (_Note * N_NOTES).in_dll(built, "lab_notes")[: n_notes.value]
    rings = dict(zip(sorted({note.ring for note in notes}), RINGS, strict=True))
    names = ("warpgroup", "what", "of", "block")
    events = (
        (note.thread // 128 - 1, _WORDS[chr(note.what)], rings[note.ring], note.n) for note in notes
    )
    return [dict(zip(names, event, strict=True)) for event in events]


def _workload(spec: Kernel, blocks: int) -> Prefill:
    keys = blocks * spec.tiles(spec.shape(head_dim=ladder.HEAD_DIM), spec.policies[0])[0].keys
    return Prefill((ROWS,), (keys,), 1, 1, ladder.HEAD_DIM)
