"""The tensor core against its model, bit for bit, and against models that are a little wrong."""

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.measure import device
from labkernels.numerics import tensor_core
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row

NAME = "tensor_core_arithmetic"
TITLE = "mma.sync.m16n8k16 on random and adversarial tiles: outputs that differ from the model"
DATA_FILE = "tensor_core_arithmetic.csv"

KERNEL, HEADER, THREADS, TILES_PER_BLOCK = "mma.sync.m16n8k16", "lab/probes.cuh", 256, 8
PROBES = {"fp16": "lab::probe_mma<lab::f16>", "bf16": "lab::probe_mma<lab::bf16>"}
TILE_OUTPUTS = 16 * 8
# Tiles of each family and dtype: 2^27 random outputs and 5 x 2^19 adversarial ones a dtype.
RANDOM_TILES, ADVERSARIAL_TILES, QUICK_TILES, BATCH_TILES = 1 << 18, 1 << 12, 1 << 8, 1 << 15
SAMPLE_TILES = 8  # of each family and dtype, kept with their outputs
MODEL = "the model"
NO_WORKLOAD = dict.fromkeys(
    ("batch", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size"), 0
) | {"tensor_cores": "on", "tile": "", "policy": "", "note": ""}

Count = tuple[str, str, str, int]  # dtype, family, what is counted, how many


class MmaParams(ctypes.Structure):
    """lab::MmaParams."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in "abcd")


def sample_name(arch: str) -> str:
    """Name of the file of tiles and their outputs that an architecture's run leaves in data/."""
    return f"tensor_core_{arch.replace('_', '')}.npz"


def run(options: Options) -> Outcome:
    """Try the model and wrong ones on this machine's GPU; write the counts and a sample of tiles.

    Raises: ValueError if there is no GPU or no commit, no model of its tensor core is known, or a
    quick run would replace the recorded one.
    """
    started = datetime.now(UTC)
    commit = commit_text(options)
    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/, where the table must be whole; allowed: --out FOLDER")
    import torch

    from labkernels.cuda.device import planning_gpu

    gpu = planning_gpu()
    facts = device.facts()
    unit = tensor_core.unit_of(gpu.arch, "fp16")  # bf16 has the same
    generator = torch.Generator("cuda").manual_seed(options.seed)
    with device.sampling() as reading:
        counts, sample = try_models(
            _probe(gpu.compile_arch),
            unit,
            tiles=(QUICK_TILES, QUICK_TILES)
            if options.quick
            else (RANDOM_TILES, ADVERSARIAL_TILES),
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
    unit: tensor_core.Unit,
    *,
    tiles: tuple[int, int],
    generator,
    say: Callable[[str], None],
) -> tuple[list[Count], dict[str, np.ndarray]]:
    """Count the outputs of `multiply(a, b, c, dtype)` that differ from the model and wrong models.

    `tiles` are those of a random family and of an adversarial one. The sample's arrays have the
    dtype and the family as their first axes: a, b as uint16, c and d as uint32, all bit patterns.
    """
    from labkernels.experiments import _tensor_core_tiles as families

    counts, kept = [], []
    for dtype in families.DTYPES:
        for family in families.FAMILIES + families.ADVERSARIAL:
            total = tiles[0] if family in families.FAMILIES else tiles[1]
            found = Counter()
            for first in range(0, total, BATCH_TILES):
                n = min(BATCH_TILES, total - first)
                a, b, c = families.draw_tiles(family, dtype, n, generator)
                d = multiply(a, b, c, dtype)
                found.update(_mismatches(a, b, c, d, unit))
                if first == 0:
                    kept.append([_bits(x[:SAMPLE_TILES]) for x in (a, b, c, d)])
            outputs = total * TILE_OUTPUTS
            say(f"{dtype}, {family}: {found[MODEL]} of {outputs} outputs differ from the model")
            counts.append((dtype, family, "outputs", outputs))
            counts += [(dtype, family, label, wrong) for label, wrong in found.items()]
    shape = (len(families.DTYPES), len(families.FAMILIES + families.ADVERSARIAL), -1)
    sample = {
        name: np.stack(arrays).reshape(*shape[:2], *arrays[0].shape)
        for name, arrays in zip("abcd", zip(*kept, strict=True), strict=True)
    }
    return counts, sample


def models(unit: tensor_core.Unit) -> Iterator[tuple[str, tensor_core.Unit]]:
    """The model and those that must be rejected: a fraction bit less or more, half the chunk."""
    yield MODEL, unit
    for bits in (unit.fraction_bits - 1, unit.fraction_bits + 1):
        yield f"{bits} fraction bits", replace(unit, fraction_bits=bits)
    yield f"chunk {unit.chunk // 2}", replace(unit, chunk=unit.chunk // 2)


def failures(counts: list[Count]) -> Iterator[str]:
    """What the counts show to be wrong: the model anywhere, or a wrong model that passed."""
    from labkernels.experiments import _tensor_core_tiles as families

    for dtype, family, label, value in counts:
        if label == MODEL and value:
            yield f"{dtype}, {family}: {value} outputs differ from the model"
        if label not in (MODEL, "outputs") and family in families.FAMILIES and not value:
            yield f"{dtype}, {family}: a model with {label} is not rejected"


def _mismatches(a, b, c, d, unit: tensor_core.Unit) -> dict[str, int]:
    import torch

    from labkernels.experiments._tensor_core_model import tile_products

    bits = d.view(torch.int32)
    return {
        label: int((tile_products(a, b, c, model).view(torch.int32) != bits).sum())
        for label, model in models(unit)
    }


def _bits(x) -> np.ndarray:
    import torch

    word, unsigned = (
        (torch.int32, np.uint32) if x.dtype == torch.float32 else (torch.int16, np.uint16)
    )
    return x.contiguous().view(word).cpu().numpy().view(unsigned)


def _row(count: Count) -> Row:
    dtype, family, label, value = count
    metric = f"outputs, {family}" if label == "outputs" else f"mismatches, {family}, {label}"
    words = {"experiment": NAME, "kernel": KERNEL, "backend": "cuda"} | NO_WORKLOAD
    number = {"metric": metric, "statistic": "exact", "value": value, "unit": "1"}
    return {**words, "dtype": dtype, **number}


def _probe(compile_arch: str) -> Callable:
    import torch

    from labkernels.cuda import compile as nvrtc
    from labkernels.cuda.launch import load

    kernels = {
        dtype: load(nvrtc.compile_kernel(HEADER, instance=name, defines={}, arch=compile_arch))
        for dtype, name in PROBES.items()
    }

    def multiply(a, b, c, dtype: str):
        columns = b.transpose(1, 2).contiguous()
        d = torch.full_like(c, float("nan"))
        kernels[dtype].launch(
            grid=(len(a) // TILES_PER_BLOCK, 1, 1),
            threads=THREADS,
            smem_bytes=0,
            params=MmaParams(a.data_ptr(), columns.data_ptr(), c.data_ptr(), d.data_ptr()),
            stream=torch.cuda.current_stream().cuda_stream,
        )
        return d

    return multiply
