"""The tensor core against its model, bit for bit, and against models that are a little wrong."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.measure import device
from labkernels.numerics import tensor_core
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row

NAME = "tensor_core_arithmetic"
TITLE = "mma.sync and wgmma on random and adversarial tiles: outputs that differ from the model"
DATA_FILE = "tensor_core_arithmetic.csv"

ARCH = "sm_90"
# Outputs of each random family, of each adversarial one, and at once.
RANDOM_OUTPUTS, ADVERSARIAL_OUTPUTS, BATCH_OUTPUTS = 1 << 24, 1 << 19, 1 << 22
QUICK_OUTPUTS = 1 << 15
# Of each instruction and family, kept with their outputs: tiles, cut to 16 rows and 8 columns.
SAMPLE_TILES, SAMPLE_ROWS, SAMPLE_COLUMNS = 4, 16, 8
MODEL = "the model"
NO_WORKLOAD = dict.fromkeys(
    ("batch", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size"), 0
) | {"tensor_cores": "on", "tile": "", "policy": "", "dtype": "", "note": ""}

Count = tuple[str, str, str, int]  # instruction, family, what is counted, how many


def sample_name(arch: str) -> str:
    """Name of the file of tiles and their outputs that an architecture's run leaves in data/."""
    return f"tensor_core_{arch.replace('_', '')}.npz"


def run(options: Options) -> Outcome:
    """Try the model and wrong ones on this machine's GPU; write the counts and a sample of tiles.

    Raises: ValueError if there is no GPU or no commit, the GPU is not of sm_90, or a quick run
    would replace the recorded one.
    """
    started = datetime.now(UTC)
    commit = commit_text(options)
    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/, where the table must be whole; allowed: --out FOLDER")
    import torch

    from labkernels.cuda.device import planning_gpu
    from labkernels.experiments._tensor_core_instructions import INSTRUCTIONS, launcher

    gpu = planning_gpu()
    if gpu.arch != ARCH:
        raise ValueError(f"the GPU is of {gpu.arch}, allowed: {ARCH}, which has these instructions")
    facts = device.facts()
    generator = torch.Generator("cuda").manual_seed(options.seed)
    outputs = (RANDOM_OUTPUTS, ADVERSARIAL_OUTPUTS)
    with device.sampling() as reading:
        counts, sample = try_models(
            launcher(gpu.compile_arch),
            INSTRUCTIONS,
            outputs=(QUICK_OUTPUTS, QUICK_OUTPUTS) if options.quick else outputs,
            generator=generator,
            say=options.progress,
        )
    origin = provenance.collect(
        {**facts, **reading.sensors},
        seed=options.seed,
        repeats=1,
        commit=commit,
        started=started,
    )
    rows = [_row(count) | origin for count in counts]
    path, sample_path = options.out / DATA_FILE, options.out / sample_name(gpu.arch)
    store.replace(path, rows, schema.MEASUREMENTS)
    np.savez_compressed(sample_path, **sample)
    datapackage.write(options.out)
    return Outcome(len(rows), (path, sample_path), tuple(failures(counts)))


def try_models(
    multiply: Callable,
    instructions: Iterable,
    *,
    outputs: tuple[int, int],
    generator,
    say: Callable[[str], None],
) -> tuple[list[Count], dict[str, np.ndarray]]:
    """Count the outputs of `multiply(instruction, a, b, c)` unlike the model and wrong models.

    `outputs` are those of a random family and of an adversarial one. The sample has arrays "NAME a"
    to "NAME d" of bit patterns, whose first axes are the family and the tile.
    """
    from labkernels.experiments import _tensor_core_tiles as families

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
    """Mismatches of each model, and the first tiles with their outputs."""
    from labkernels.experiments import _tensor_core_tiles as families

    found: Counter = Counter()
    shape = {"mnk": (instruction.m, instruction.n, instruction.k), "out": instruction.out}
    tiles, kept = outputs // (instruction.m * instruction.n), None
    batch = BATCH_OUTPUTS // (instruction.m * instruction.n)
    for first in range(0, tiles, batch):
        n = min(batch, tiles - first)
        a, b, c = families.draw_tiles(family, instruction.fmt, n, generator, **shape)
        d = multiply(instruction, a, b, c)
        for label, evaluate in models(instruction):
            # a wrong model may have none: the count must say so
            found[label] += int((_words(evaluate(a, b, c)) != _words(d)).sum())
        if kept is None:
            some, rows, columns = (slice(n) for n in (SAMPLE_TILES, SAMPLE_ROWS, SAMPLE_COLUMNS))
            cut = a[some, rows], b[some, :, columns], c[some, rows, columns], d[some, rows, columns]
            kept = [_bits(x) for x in cut]
    return found, kept


def models(instruction) -> Iterator[tuple[str, Callable]]:
    """The model and those that must be rejected, as functions of a, b and c.

    A fraction bit less or more, half the chunk; for 8-bit inputs also a bit less or more in the
    output, or for mma.sync the unit that wgmma has for them.
    """
    from labkernels.experiments._tensor_core_model import tile_products, widened_products

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
    """What the counts show to be wrong: the model anywhere, or a wrong model that passed."""
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
    """Bit patterns, as a signed integer type that can be compared."""
    import torch

    return x.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def _bits(x) -> np.ndarray:
    words = _words(x).cpu().numpy()
    return words.view(words.dtype.str.replace("i", "u"))


def _row(count: Count) -> Row:
    name, family, label, value = count
    metric = f"outputs, {family}" if label == "outputs" else f"mismatches, {family}, {label}"
    words = {"experiment": NAME, "kernel": name, "backend": "cuda"} | NO_WORKLOAD
    number = {"metric": metric, "statistic": "exact", "value": value, "unit": "1"}
    return {**words, **number}
