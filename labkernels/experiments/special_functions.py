"""The special-function unit, read off the GPU: the parabolas of ex2.approx, and their test."""

import ctypes
from datetime import UTC, datetime

import numpy as np

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.measure import device
from labkernels.numerics import ex2_unit
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row

NAME = "special_functions"
TITLE = "ex2.approx.ftz.f32 on all 2^32 inputs: its parabolas, and how often the model differs"
DATA_FILE = "special_functions.csv"

HEADER, PROBE, THREADS = "lab/probes.cuh", "lab::probe_ex2", 256  # lab::probe_threads
ALL_INPUTS, CHUNK = 1 << 32, 1 << 26
EXPONENT_ONE, INFINITY_BITS, ONE_BITS = 1 << 23, 0x7F800000, 0x3F800000
# A row must fill the columns that describe a workload; none applies here.
NO_WORKLOAD = dict.fromkeys(
    ("batch", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size"), 0
) | {"tensor_cores": "", "tile": "", "policy": "", "dtype": "fp32", "note": ""}


class Ex2Params(ctypes.Structure):
    """lab::Ex2Params."""

    _fields_ = (("x", ctypes.c_void_p), ("y", ctypes.c_void_p))


def run(options: Options) -> Outcome:
    """Find the parabolas behind 2^23 outputs, hold every input against them, and write both.

    Raises: ValueError if there is no GPU or no commit, or the outputs are not of parabolas.
    """
    started = datetime.now(UTC)
    facts = device.facts()
    commit = commit_text(options)
    import torch

    evaluate = _probe()
    with device.sampling() as reading:
        fraction = torch.arange(EXPONENT_ONE, device="cuda", dtype=torch.float64) / EXPONENT_ONE
        unit = ex2_unit.fit((_bits(evaluate(fraction.float())) - ONE_BITS).cpu().numpy())
        mantissas = torch.from_numpy(unit.mantissa(np.arange(EXPONENT_ONE))).cuda()
        total = CHUNK if options.quick else ALL_INPUTS
        wrong = _mismatches(evaluate, mantissas, total)
    options.progress(f"ex2.approx.ftz.f32: {wrong} of {total} inputs differ from the model")
    path = options.out / ex2_unit.DATA_FILE.name
    path.parent.mkdir(parents=True, exist_ok=True)
    ex2_unit.write(unit, path)
    origin = provenance.collect(
        {**facts, **reading.sensors},
        seed=options.seed,
        repeats=1,
        commit=commit,
        started=started,
    )
    rows = [
        _row("inputs", total, origin),
        _row("mismatches", wrong, origin),
    ]
    store.replace(options.out / DATA_FILE, rows, schema.MEASUREMENTS)
    datapackage.write(options.out)
    failures = (f"{wrong} inputs differ from the model",) if wrong else ()
    return Outcome(len(rows), (options.out / DATA_FILE, path), failures)


def _row(metric: str, value: int, origin: Row) -> Row:
    words = {"experiment": NAME, "kernel": "ex2.approx.ftz.f32", "backend": "cuda"}
    number = {"metric": metric, "statistic": "exact", "value": value, "unit": "1"}
    return {**words, **NO_WORKLOAD, **number, **origin}


def _probe():
    import torch

    from labkernels.cuda import compile as nvrtc
    from labkernels.cuda.device import planning_gpu
    from labkernels.cuda.launch import load

    arch = planning_gpu(torch.cuda.current_device()).compile_arch
    kernel = load(nvrtc.compile_kernel(HEADER, instance=PROBE, defines={}, arch=arch))

    def evaluate(x):
        y = torch.full_like(x, float("nan"))
        kernel.launch(
            grid=(x.numel() // THREADS, 1, 1),
            threads=THREADS,
            smem_bytes=0,
            params=Ex2Params(x.data_ptr(), y.data_ptr()),
            stream=torch.cuda.current_stream().cuda_stream,
        )
        return y

    return evaluate


def _bits(x):
    """Bits of float32 as int64, where they are not negative."""
    import torch

    return x.view(torch.int32).long() & (ALL_INPUTS - 1)


def _mismatches(evaluate, mantissas, total: int) -> int:
    """Inputs on which the device and numerics.special_functions.exp2_mufu's model differ."""
    import torch

    wrong = 0
    for first in range(0, total, CHUNK):
        bits = torch.arange(first, first + CHUNK, device="cuda", dtype=torch.int64)
        x = torch.where(bits < ALL_INPUTS // 2, bits, bits - ALL_INPUTS).int().view(torch.float32)
        nan, below = x.isnan(), bits >= ALL_INPUTS // 2
        # beyond 256 the result is 0 or inf already
        magnitude = torch.where(nan, 0.0, x.abs().clamp(max=256.0).double())
        steps = (magnitude * EXPONENT_ONE).long()
        negative = torch.where(steps % EXPONENT_ONE == 0, -steps, ~steps)
        steps = torch.where(below, negative, steps)
        model = ((steps >> 23) << 23) + ONE_BITS + mantissas[steps & (EXPONENT_ONE - 1)]
        model = torch.where(model < EXPONENT_ONE, 0, model).clamp(0, INFINITY_BITS)
        model = torch.where(nan, 0x7FFFFFFF, model)
        wrong += int((model != _bits(evaluate(x))).sum())
    return wrong
