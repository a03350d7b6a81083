"""Every bit of the prefill kernels on a GPU, as checksums that any machine can compute again."""

from collections.abc import Iterator

from labkernels.experiments import Options, Outcome, _bits
from labkernels.experiments._bits import Trial
from labkernels.experiments._prefill_rows import workload_columns
from labkernels.kernels.spec import Instance, KernelSpec, discover, head_dim_v
from labkernels.measure.prefill_cases import exact_prefill_case
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.workload import Prefill

NAME = "prefill_bits"
TITLE = "SHA-256 of every CUDA prefill kernel's output, to be met bit for bit by its CPU build"
DATA_FILE = "prefill_bits.csv"

Q_LENS = (1, 37, 0, 70, 150)
KV_LENS = (130, 37, 20, 0, 333)
KV_HEADS, GROUP, PAGE_SIZE = 2, 3, 16
SPLITS = (1024, 128)  # keys a split: one split, and several


def trials() -> Iterator[Trial]:
    """Every CUDA kernel and tile in bf16, the preferred ones in fp16 too; ragged, paged by turns.

    The mask and the splits take turns too.
    """
    for spec in discover().values():
        if (spec.family, spec.language) == ("prefill", "cuda"):
            for number, instance in enumerate(_instances(spec)):
                workload = Prefill(
                    Q_LENS,
                    KV_LENS,
                    KV_HEADS * GROUP,
                    KV_HEADS,
                    instance.head_dim,
                    causal=number % 4 < 2,
                    dtype=instance.dtype,
                    head_dim_v=head_dim_v(instance.head_dim),
                    page_size=PAGE_SIZE if instance.kv == "paged" else None,
                )
                yield Trial(instance, workload, SPLITS[number % 3 == 0])


def _instances(spec: KernelSpec) -> Iterator[Instance]:
    for head_dim in spec.head_dims:
        shape = {"head_dim": head_dim, "rows": GROUP * max(Q_LENS), "policy": spec.policies[0]}
        tiles = len(spec.instances(dtype="bf16", **shape))
        for number in range(tiles):
            yield spec.instances(dtype="bf16", kv=spec.kv[number % 2], **shape)[number]
        for kv in spec.kv:
            yield spec.instances(dtype="fp16", kv=kv, **shape)[0]


def checksum(trial: Trial, *, seed: int, device: str) -> str:
    """SHA-256 of out and lse2 of a trial, run on a device ("cpu": the CPU build).

    Raises: ValueError if the kernel does not support the trial.
    """
    from labkernels import ops

    case, instance = exact_prefill_case(trial.workload, seed=seed, device=device), trial.instance
    result = ops.prefill(
        case.q,
        case.kv,
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
    outputs = sum(workload.q_lens) * workload.q_heads * workload.head_dim_v
    what = f"{trial.keys_per_split} keys a split"
    return _bits.row(NAME, trial, text, shape, what=what, outputs=outputs)
