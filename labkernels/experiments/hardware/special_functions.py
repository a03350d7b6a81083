"""Find the parabolas by which a GPU's special-function unit computes ex2.approx, and test them."""

from collections.abc import Iterator

import numpy as np

from labkernels.cuda.trial import HEADER, INSTANCE, THREADS, Ex2Params
from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.numerics.emulation import ex2_unit
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "hardware/special_functions.csv"

ALL_INPUTS, CHUNK = 1 << 32, 1 << 26
EXPONENT_ONE, INFINITY_BITS, ONE_BITS = 1 << 23, 0x7F800000, 0x3F800000


def cells(options: Options) -> Iterator[Cell]:
    """Yield one cell: all inputs, or the first of them if `quick`."""
    total = CHUNK if options.quick else ALL_INPUTS
    yield Cell(f"ex2.approx.ftz.f32 of {total} inputs", total)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Fit parabolas to the outputs of 2^23 inputs, and compare all inputs with that model.

    Raises: ValueError if the outputs are not those of parabolas.
    """
    import torch

    evaluate, total = _probe(), cell.of
    with recording.sampling():
        fraction = torch.arange(EXPONENT_ONE, device="cuda", dtype=torch.float64) / EXPONENT_ONE
        unit = ex2_unit.fit((_bits(evaluate(fraction.float())) - ONE_BITS).cpu().numpy())
        mantissas = torch.from_numpy(unit.mantissa(np.arange(EXPONENT_ONE))).cuda()
        wrong = _mismatches(evaluate, mantissas, total)
    recording.tell(f"{wrong} differ from the model")
    if wrong:
        recording.fail(f"{wrong} inputs differ from the model")
    ex2_unit.write(unit, recording.path(f"hardware/{ex2_unit.DATA_FILE.name}"))
    base = measured.no_workload("ex2.approx.ftz.f32", "cuda", dtype="fp32", repeats=1)
    yield DATA_FILE, measured.row(base, "inputs", "exact", total, "1")
    yield DATA_FILE, measured.row(base, "mismatches", "exact", wrong, "1")


def _probe():
    import torch

    from labkernels.cuda.compiler import nvrtc
    from labkernels.cuda.gpu.device import planning_gpu
    from labkernels.cuda.gpu.kernel import load

    arch = planning_gpu(torch.cuda.current_device()).compile_arch
    kernel = load(nvrtc.compile_kernel(HEADER, instance=INSTANCE, defines={}, arch=arch))

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
    """Return the bits of float32 as non-negative int64."""
    import torch

    return x.view(torch.int32).long() & (ALL_INPUTS - 1)


def _mismatches(evaluate, mantissas, total: int) -> int:
    """Count inputs on which the device and numerics.emulation.exp2.exp2_mufu's model differ."""
    import torch

    wrong = 0
    for first in range(0, total, CHUNK):
        bits = torch.arange(first, first + CHUNK, device="cuda", dtype=torch.int64)
        x = torch.where(bits < ALL_INPUTS // 2, bits, bits - ALL_INPUTS).int().view(torch.float32)
        nan, below = x.isnan(), bits >= ALL_INPUTS // 2
        # inputs beyond 256 have the result of 256: 0 or inf
        magnitude = torch.where(nan, 0.0, x.abs().clamp(max=256.0).double())
        steps = (magnitude * EXPONENT_ONE).long()
        negative = torch.where(steps % EXPONENT_ONE == 0, -steps, ~steps)
        steps = torch.where(below, negative, steps)
        model = ((steps >> 23) << 23) + ONE_BITS + mantissas[steps & (EXPONENT_ONE - 1)]
        model = torch.where(model < EXPONENT_ONE, 0, model).clamp(0, INFINITY_BITS)
        model = torch.where(nan, 0x7FFFFFFF, model)
        wrong += int((model != _bits(evaluate(x))).sum())
    return wrong


EXPERIMENT = Experiment(
    "special_functions",
    "ex2.approx.ftz.f32 on all 2^32 inputs: its parabolas, and how often the model differs",
    {DATA_FILE: schema.MEASUREMENTS},
    cells,
    rows,
    renewed=(DATA_FILE,),
)
