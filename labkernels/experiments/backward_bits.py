"""Every bit of the ordered backward passes on a GPU, a thousand times, and as checksums."""

from collections.abc import Iterator

from labkernels.experiments import Options, Outcome, _bits
from labkernels.experiments._bits import Trial
from labkernels.experiments._prefill_rows import workload_columns
from labkernels.experiments.prefill_bits import GROUP, KV_HEADS, KV_LENS, Q_LENS
from labkernels.kernels.spec import Instance, KernelSpec, discover
from labkernels.measure.backward_cases import exact_backward_case
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.workload import Backward

NAME = "backward_bits"
TITLE = "SHA-256 of every CUDA kernel's ordered gradients, the same in 1000 runs and on a CPU"
DATA_FILE = "backward_bits.csv"

RUNS = 1000  # on the GPU


def trials() -> Iterator[Trial]:
    """Every CUDA kernel and ordered tile in bf16, the preferred ones in fp16; masks by turns."""
    for spec in discover().values():
        if (spec.family, spec.language) == ("backward", "cuda"):
            for number, instance in enumerate(_instances(spec)):
                workload = Backward(
                    Q_LENS,
                    KV_LENS,
                    KV_HEADS * GROUP,
                    KV_HEADS,
                    instance.head_dim,
                    causal=number % 2 == 0,
                    dtype=instance.dtype,
                )
                yield Trial(instance, workload)


def _instances(spec: KernelSpec) -> Iterator[Instance]:
    for head_dim in spec.head_dims:
        for dtype in ("bf16", "fp16"):
            shape = {"head_dim": head_dim, "rows": 1, "policy": spec.policies[0], "kv": "ragged"}
            every = spec.instances(dtype=dtype, **shape)
            ordered = [instance for instance in every if instance.tile.dq == "ordered"]
            yield from ordered if dtype == "bf16" else ordered[:1]


def checksum(trial: Trial, *, seed: int, device: str, runs: int = 1) -> str:
    """SHA-256 of dq, dk and dv of a trial, run on a device ("cpu": the CPU build).

    Raises: ValueError if the kernel does not support the trial, or a run has other bits.
    """
    from labkernels import ops

    case = exact_backward_case(trial.workload, seed=seed, device=device)
    step = ops.backward_step(
        *case.arguments,
        causal=trial.workload.causal,
        deterministic=True,
        kernel=trial.instance.kernel,
        tile=trial.instance.tile.label,
        policy=trial.instance.policy,
        scale=case.forward.scale,
    )
    gradients = (step.dq, step.dk, step.dv)
    step.run()
    first = [x.clone() for x in gradients]
    different = sum(_differs(step.run, gradients, first) for _ in range(runs - 1))
    if different:
        allowed = "0: each sum has one order"
        raise ValueError(f"{different} of {runs} runs have other bits, allowed: {allowed}")
    return _bits.digest(*first)


def _differs(run, gradients, first) -> bool:
    import torch

    for x in gradients:
        x.fill_(float("nan"))
    run()
    pairs = zip(gradients, first, strict=True)
    return not all(torch.equal(x.view(torch.int16), y.view(torch.int16)) for x, y in pairs)


def run(options: Options) -> Outcome:
    """Run every trial on this machine's GPU and write the checksums, replacing the file.

    Raises: ValueError if there is no GPU, no commit, a run has other bits than the one before, or
    part of the trials would replace the file.
    """
    return _bits.record(
        options,
        list(trials()),
        checksum=lambda trial: checksum(trial, seed=options.seed, device="cuda", runs=RUNS),
        row=row,
        data_file=DATA_FILE,
        table=schema.PREFILL_MEASUREMENTS,
    )


def row(trial: Trial, text: str) -> Row:
    """A trial's row without its provenance."""
    workload = trial.workload
    tokens, keys = sum(workload.q_lens), sum(workload.kv_lens)
    outputs = (tokens * workload.q_heads + 2 * keys * workload.kv_heads) * workload.head_dim
    shape = workload_columns(workload)
    what = f"the same in {RUNS} runs"
    return _bits.row(NAME, trial, text, shape, what=what, outputs=outputs)
