"""Compare the tensor core, bit for bit, with its model and with models that are slightly wrong."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.numerics.emulation import tensor_core
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "hardware/tensor_core_arithmetic.parquet"

ARCH = "sm_90"
OUTPUTS = 1 << 24, 1 << 19  # outputs per random family, and per adversarial family
QUICK_OUTPUTS = 1 << 15, 1 << 15
BATCH_OUTPUTS = 1 << 22  # outputs computed at once
# Tiles per instruction and family that are kept with their outputs, cut to 16 rows and 8 columns.
SAMPLE_TILES, SAMPLE_ROWS, SAMPLE_COLUMNS = 4, 16, 8
MODEL = "the model"

Count = tuple[str, str, str, int]  # instruction, family, what is counted, how many


def sample_name(arch: str) -> str:
    """Return the path in data/ of the tiles and outputs that an architecture's run writes."""
    return f"hardware/tensor_core_{arch.replace('_', '')}.npz"


def cells(options: Options) -> Iterator[Cell]:
    """Yield the instructions; `quick` tests each on fewer outputs."""
    from labkernels.experiments.hardware.instructions import INSTRUCTIONS

    for instruction in INSTRUCTIONS:
        yield Cell(instruction.name, instruction)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Test the right and the wrong models on an instruction; the last one writes all samples."""
    bench, quick = recording.once(_Bench), recording.options.quick
    with recording.sampling():
        counts, sample = try_models(
            bench.multiply,
            [cell.of],
            outputs=QUICK_OUTPUTS if quick else OUTPUTS,
            generator=bench.generator,
            say=recording.tell,
        )
    for words in failures(counts):
        recording.fail(words)
    bench.sample |= sample
    if len(bench.sample) == len("abcd") * len(recording.cells):
        np.savez_compressed(recording.path(sample_name(ARCH)), **bench.sample)
    yield from ((DATA_FILE, _row(count)) for count in counts)


class _Bench:
    """What the instructions share: the probe, the random generator and the sample of tiles."""

    def __init__(self, recording: Recording) -> None:
        import torch

        from labkernels.cuda.gpu.device import planning_gpu
        from labkernels.experiments.hardware.instructions import launcher

        self.multiply = launcher(planning_gpu().compile_arch)
        self.generator = torch.Generator("cuda").manual_seed(recording.options.seed)
        self.sample: dict[str, np.ndarray] = {}


def _other_gpu() -> str | None:
    from labkernels.cuda.gpu.device import planning_gpu

    arch = planning_gpu().arch
    return None if arch == ARCH else f"the GPU is of {arch}; only {ARCH} has these instructions"


def try_models(
    multiply: Callable,
    instructions: Iterable,
    *,
    outputs: tuple[int, int],
    generator,
    say: Callable[[str], None],
) -> tuple[list[Count], dict[str, np.ndarray]]:
    """Count the outputs of `multiply(instruction, a, b, c)` that differ from each model's.

    outputs: how many per random family, and per adversarial family. The sample has arrays "NAME a"
    to "NAME d" of bit patterns, whose first axes are the family and the tile.
    """
    from labkernels.experiments.hardware import tiles as families

    counts, sample = [], {}
    for instruction in instructions:
        kept = []
        for family in families.FAMILIES + families.ADVERSARIAL:
            total = outputs[family not in families.FAMILIES]
            found, tiles = _try_family(multiply, instruction, family, total, generator)
            kept.append(tiles)
            counts.append((instruction.name, family, "outputs", total))
            counts += [(instruction.name, family, label, wrong) for label, wrong in found.items()]
        wrong = sum(value for name, _, label, value in counts
                    if name == instruction.name and label == MODEL)  # fmt: skip
        say(f"{instruction.name}: {wrong} outputs differ from the model")
        for i, operand in enumerate("abcd"):
            sample[f"{instruction.name} {operand}"] = np.stack([tiles[i] for tiles in kept])
    return counts, sample


def _try_family(multiply, instruction, family: str, outputs: int, generator):
    """Return the mismatches of each model, and the first tiles with their outputs."""
    from labkernels.experiments.hardware import tiles as families

    found: Counter = Counter()
    shape = {"mnk": (instruction.m, instruction.n, instruction.k), "out": instruction.out}
    tiles, kept = outputs // (instruction.m * instruction.n), None
    batch = BATCH_OUTPUTS // (instruction.m * instruction.n)
    for first in range(0, tiles, batch):
        n = min(batch, tiles - first)
        a, b, c = families.draw_tiles(family, instruction.fmt, n, generator, **shape)
        d = multiply(instruction, a, b, c)
        for label, evaluate in models(instruction):
            # += 0 also makes an entry: a wrong model without mismatches must be in the counts
            found[label] += int((_words(evaluate(a, b, c)) != _words(d)).sum())
        if kept is None:
            some, rows, columns = (slice(n) for n in (SAMPLE_TILES, SAMPLE_ROWS, SAMPLE_COLUMNS))
            cut = a[some, rows], b[some, :, columns], c[some, rows, columns], d[some, rows, columns]
            kept = [_bits(x) for x in cut]
    return found, kept


def models(instruction) -> Iterator[tuple[str, Callable]]:
    """Yield the model and the wrong models, with their names, as functions of a, b and c.

    A wrong model has one fraction bit fewer or more, or half the chunk. For 8-bit inputs another
    has one output bit fewer or more (wgmma), or the unit of wgmma (mma.sync).
    """
    from labkernels.experiments.hardware.torch_model import tile_products, widened_products

    fmt = instruction.fmt
    unit = tensor_core.unit_of("sm_90", "fp16" if instruction.widened else fmt)

    def on(changed: tensor_core.Unit) -> Callable:
        if instruction.widened:
            return lambda a, b, c: widened_products(a, b, c, changed)
        return lambda a, b, c: tile_products(a, b, c, changed, fmt)

    yield MODEL, on(unit)
    for step in (-1, 1):
        bits = unit.fraction_bits + step
        yield f"{bits} fraction bits", on(replace(unit, fraction_bits=bits))
        if unit.out_fraction_bits < 23:
            bits = unit.out_fraction_bits + step
            yield f"{bits} output bits", on(replace(unit, out_fraction_bits=bits))
    yield f"chunk {unit.chunk // 2}", on(replace(unit, chunk=unit.chunk // 2))
    if instruction.widened:
        narrow = tensor_core.unit_of("sm_90", fmt)
        yield "the unit of wgmma", lambda a, b, c: tile_products(a, b, c, narrow, fmt)


def failures(counts: list[Count]) -> Iterator[str]:
    """Yield where the model is wrong, and which wrong models are not rejected."""
    rejected: Counter = Counter()
    for name, family, label, value in counts:
        if label == MODEL and value:
            yield f"{name}, {family}: {value} outputs differ from the model"
        if label not in (MODEL, "outputs"):
            rejected[name, label] += value
    for (name, label), value in rejected.items():
        if not value:
            yield f"{name}: a model with {label} is not rejected"


def _words(x):
    """Return the bit patterns, as signed integers that can be compared."""
    import torch

    return x.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def _bits(x) -> np.ndarray:
    words = _words(x).cpu().numpy()
    return words.view(words.dtype.str.replace("i", "u"))


def _row(count: Count) -> Row:
    name, family, label, value = count
    metric = f"outputs, {family}" if label == "outputs" else f"mismatches, {family}, {label}"
    base = measured.no_workload(name, "cuda", tensor_cores="on", repeats=1)
    return measured.row(base, metric, "exact", value, "1")


EXPERIMENT = Experiment(
    "tensor_core_arithmetic",
    "mma.sync and wgmma on random and adversarial tiles: outputs that differ from the model",
    {DATA_FILE: schema.MEASUREMENTS},
    cells,
    rows,
    missing=_other_gpu,
    renewed=(DATA_FILE,),
    whole=True,
)
