"""Every bit of the MLA kernels on a GPU, as checksums that any machine can compute again."""

from collections.abc import Iterator

from labkernels.experiments import Options, Outcome, _bits
from labkernels.experiments._bits import Trial
from labkernels.experiments._mla_rows import workload_columns
from labkernels.kernels.spec import discover
from labkernels.measure.mla_cases import exact_mla_case
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.workload import MlaDecode

NAME = "mla_bits"
TITLE = "SHA-256 of every CUDA MLA kernel's output, to be met bit for bit by its CPU build"
DATA_FILE = "mla_bits.csv"

KV_LENS = (130, 0, 37, 333)
HEADS = (17, 40)  # in turn; neither fills whole tiles
HEAD_DIM, Q_LEN, PAGE_SIZES = 576, 3, (16, 1, 64)
SPLITS = (1024, 128)  # keys a split: one split, and several


def trials() -> Iterator[Trial]:
    """Every CUDA kernel and tile in bf16 and fp16; heads, pages, mask and splits take turns."""
    for spec in discover().values():
        if (spec.family, spec.language) != ("mla", "cuda"):
            continue
        shape = {"head_dim": HEAD_DIM, "rows": Q_LEN * max(HEADS), "policy": spec.policies[0]}
        for dtype in ("bf16", "fp16"):
            for number, instance in enumerate(spec.instances(dtype=dtype, **shape)):
                workload = MlaDecode(
                    KV_LENS,
                    HEADS[number % 2],
                    q_len=Q_LEN,
                    page_size=PAGE_SIZES[number % 3],
                    dtype=dtype,
                    causal=number % 4 < 2,
                )
                yield Trial(instance, workload, SPLITS[number % 3 == 0])


def checksum(trial: Trial, *, seed: int, device: str) -> str:
    """SHA-256 of out and lse2 of a trial, run on a device ("cpu": the CPU build).

    Raises: ValueError if the kernel does not support the trial.
    """
    from labkernels import ops

    case, instance = exact_mla_case(trial.workload, seed=seed, device=device), trial.instance
    result = ops.mla_decode(
        case.q_nope,
        case.q_pe,
        case.cache,
        case.cu_seqlens_q,
        causal=trial.workload.causal,
        kernel=instance.kernel,
        tile=instance.tile.label,
        policy=instance.policy,
        keys_per_split=trial.keys_per_split,
        scale=case.scale,
    )
    return _bits.digest(result.out, result.lse2)


def run(options: Options) -> Outcome:
    """Run every trial on this machine's GPU and write the checksums, replacing the file.

    Raises: ValueError if there is no GPU, no commit, or part of the trials would replace the file.
    """
    return _bits.record(
        options,
        list(trials()),
        checksum=lambda trial: checksum(trial, seed=options.seed, device="cuda"),
        row=row,
        data_file=DATA_FILE,
        table=schema.PREFILL_MEASUREMENTS,
    )


def row(trial: Trial, text: str) -> Row:
    """A trial's row without its provenance."""
    workload = trial.workload
    shape = workload_columns(workload)
    outputs = workload.batch * workload.q_len * workload.q_heads * workload.latent_dim
    what = f"{trial.keys_per_split} keys a split"
    return _bits.row(NAME, trial, text, shape, what=what, outputs=outputs)
