"""Every bit of the decode kernels on a GPU, as checksums that any machine can compute again."""

from collections.abc import Iterator

from labkernels.experiments import Options, Outcome, _bits
from labkernels.experiments._bits import Trial
from labkernels.kernels.spec import NumericPolicy, discover
from labkernels.measure.cases import DecodeCase, exact_decode_case
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.workload import Decode

NAME = "decode_bits"
TITLE = "SHA-256 of every CUDA decode kernel's output, to be met bit for bit by its CPU build"
DATA_FILE = "decode_bits.csv"

LENGTHS = (0, 1, 17, 64, 129, 200, 300, 513)
KV_HEADS = 8
SHAPES = ((64, 4), (128, 1), (128, 4), (128, 7), (128, 16), (256, 4))  # head_dim, group
COSTLY_SHAPE = (128, 4)  # of the policy with every switch that a default kernel lacks
SPLITS = (1024, 128)  # keys a split: one split, and several with empty ones


def trials() -> Iterator[Trial]:
    """Every CUDA kernel, dtype and shape: default policy, and fp32 output with FMA exponentials.

    At one shape also P in two parts, of which l is the sum, and sums that fp32 joins.
    """
    for spec in discover().values():
        if (spec.family, spec.language) != ("decode", "cuda"):
            continue
        chosen = [spec.policies[0]]
        chosen += [p for p in spec.policies if (p.out, p.exp2) == ("fp32", "poly5")][:1]
        costly = NumericPolicy("input_x2", "rounded", accumulate="promoted", out="fp32")
        for dtype in spec.dtypes:
            for head_dim, group in SHAPES:
                workload = Decode(LENGTHS, KV_HEADS * group, KV_HEADS, head_dim, 16, dtype)
                here = (head_dim, group) == COSTLY_SHAPE and costly in spec.policies
                for policy in [*chosen, costly] if here else chosen:
                    instance = spec.instance(
                        dtype=dtype, head_dim=head_dim, group=group, policy=policy
                    )
                    for keys in SPLITS:
                        yield Trial(instance, workload, keys)


def checksum(trial: Trial, *, seed: int, device: str) -> str:
    """SHA-256 of out and lse2 of a trial, run on a device ("cpu": the CPU build).

    Raises: ValueError if the kernel does not support the trial.
    """
    from labkernels import ops

    case: DecodeCase = exact_decode_case(trial.workload, seed=seed, device=device)
    instance = trial.instance
    result = ops.decode(
        case.q,
        case.cache,
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
        table=schema.MEASUREMENTS,
    )


def row(trial: Trial, text: str) -> Row:
    """A trial's row without its provenance."""
    workload = trial.workload
    shape = {
        "batch": workload.batch,
        "kv_len": workload.max_kv_len,
        "q_heads": workload.q_heads,
        "kv_heads": workload.kv_heads,
        "head_dim": workload.head_dim,
        "page_size": workload.page_size,
        "dtype": workload.dtype,
    }
    outputs = workload.batch * workload.q_heads * workload.head_dim
    what = f"{trial.keys_per_split} keys a split"
    return _bits.row(NAME, trial, text, shape, what=what, outputs=outputs)
