"""Kernels and grids that the libraries launch for a batch, beside the cut of their planners."""

from collections.abc import Iterator

from labkernels.experiments.batch_invariance import bits, ways
from labkernels.experiments.batch_invariance.bits import Shape
from labkernels.experiments.experiment import Cell, Experiment
from labkernels.experiments.harness import Recording
from labkernels.kernels.checks import target_gpu
from labkernels.measure.peers import peer
from labkernels.measure.profiling.launches import launches
from labkernels.planners import NotKnown, launched
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/launches.parquet"
NAME_LETTERS = 320  # of a kernel's name: what stands before these are the numbers of its template


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Run each way with a known cut in each batch under the profiler."""
    shape: Shape = cell.of
    missing = recording.once(bits.build_peers)
    given = bits.draw(shape, seed=recording.options.seed, device=recording.device)
    gpu, found = target_gpu(given.q.device, None), list[bool]()
    for way in ways.ways(shape.operation):
        if way.cut is None or missing.get(way.library) or way.missing():
            continue
        copies = shape.q_heads // shape.kv_heads if way.repeats_kv else 1
        for n in (1, *bits.batches(shape, copies)):
            t = bits.first(given, n)
            batch = way.batch(t, bits.DTYPE)
            try:
                cut, version = way.cut(batch, gpu), way.run(t).version  # which compiles it
                seen = launches(lambda way=way, t=t: way.run(t))
            except NotKnown:
                break
            except Exception as error:  # each library has error classes of its own
                recording.tell(f"{way.name}: {peer.one_line(error)}")
                break
            for launch in seen:
                if launched.is_attention(cut, launch.kernel):
                    agrees = launched.agrees(cut, batch, launch.kernel, launch.grid)
                    found.append(agrees)
                    row: Row = {"way": way.name, "library": way.library, "version": version}
                    row |= {"operation": shape.operation, "dtype": bits.DTYPE, "batch": n}
                    row |= {name: getattr(shape, name) for name in bits.SIZES}
                    row |= {"cut": cut.label(), "kernel": launch.kernel[:NAME_LETTERS]}
                    row |= {"grid": " x ".join(map(str, launch.grid)), "agrees": agrees}
                    yield DATA_FILE, row
    recording.tell(f"{sum(found)} of {len(found)} launches have the planned tile and splits")


EXPERIMENT = Experiment(
    "launches",
    "Kernels and grids that libraries launch for a batch, beside the cut of their planners",
    {DATA_FILE: schema.TABLES["launches"]},
    bits.cells,
    rows,
    renewed=(DATA_FILE,),
)
