"""The resources of a kernel on a GPU: ledgers, the compiler's reports, occupancy."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from labkernels.budget.compiler import Prediction
from labkernels.budget.ledger import Ledger
from labkernels.budget.occupancy import Occupancy, occupancy
from labkernels.cuda.compiler import nvrtc
from labkernels.hardware import Gpu
from labkernels.kernels import registry as specs
from labkernels.kernels.kernel import Instance, Kernel, Shape
from labkernels.records import store
from labkernels.records.store import Row
from labkernels.variant import AttentionVariant

RECORDED = store.path_of("compiler_reports")
VARIED, VARIED_HEAD_DIMS = ("window", "soft_cap", "sinks"), (64, 128, 256)  # in bf16, for sm_90a


@dataclass(frozen=True)
class Compiled:
    """What ptxas reports of an instance; source says whether it ran here or was recorded before.

    spill_bytes: of its spill stores, per thread.
    """

    registers: int
    spill_bytes: int
    smem_bytes: int
    source: str


@dataclass(frozen=True)
class Resources:
    """Predicted and compiled resources of one instance on one GPU.

    registers: what the algorithm needs per thread; predicted: the same plus what ptxas adds.
    compiled is None if nothing was recorded and there is no compiler; the occupancy then follows
    from the predicted registers.
    """

    instance: Instance
    gpu: Gpu
    smem: Ledger
    registers: Ledger
    predicted: Prediction
    compiled: Compiled | None
    occupancy: Occupancy


def cuda_kernels() -> dict[str, Any]:
    """Return the kernels that have ledgers: those written in CUDA."""
    return {name: spec for name, spec in specs.discover().items() if spec.language == "cuda"}


def find(kernel: str) -> Any:
    """Return a CUDA kernel by name.

    Raises: ValueError naming the kernels that have ledgers.
    """
    known = cuda_kernels()
    if kernel not in known:
        raise ValueError(f"kernel = {kernel!r}, allowed: {', '.join(known)}, which have ledgers")
    return known[kernel]


def shape_of(spec: Kernel, workload: Any) -> Shape:
    """Return the facts of a workload that a kernel's choice of a tile may depend on."""
    latent = hasattr(workload, "latent_dim")
    tokens = getattr(workload, "q_lens", (getattr(workload, "q_len", 1),))
    heads = workload.q_heads if latent else workload.group
    return spec.shape(
        dtype=workload.dtype,
        head_dim=workload.latent_dim + workload.rope_dim if latent else workload.head_dim,
        group=heads,
        rows=max(1, heads * max(tokens)),
        layout="ragged" if workload.page_size is None else "paged",
        variant=workload.variant,
        kv_dtype=getattr(workload, "kv_dtype", None),
        of_blocks=getattr(workload, "keys_per_scale", None) is not None,
    )


def resources(instance: Instance, *, gpu: Gpu) -> Resources:
    """Return an instance's ledgers, what the compiler says, and how many blocks share an SM.

    Units: bytes per block, registers per thread.
    """
    spec = find(instance.kernel)
    smem, registers = spec.smem(instance), spec.registers(instance)
    predicted = spec.predicted_registers(instance, gpu)
    compiled = compile_report(instance, arch=gpu.compile_arch)
    blocks = occupancy(
        gpu,
        threads=instance.tile.threads,
        registers=compiled.registers if compiled else predicted.registers,
        smem_bytes=smem.total,
    )
    return Resources(instance, gpu, smem, registers, predicted, compiled, blocks)


def compile_report(instance: Instance, *, arch: str) -> Compiled | None:
    """Return the compiler's report on an instance, from NVRTC here or from data/, or None."""
    if nvrtc.available() is None:
        report = compile_instance(instance, arch=arch).report
        return Compiled(
            report.registers,
            report.spill_store_bytes,
            find(instance.kernel).smem(instance).total + report.static_smem_bytes,
            f"compiled here by NVRTC {nvrtc.nvrtc_version()}",
        )
    row = recorded(instance, arch=arch)
    if row is None:
        return None
    source = f"recorded from {row['compiler']}, {row['started_utc']}; there is no compiler here"
    return Compiled(int(row["registers"]), int(row["spill_bytes"]), int(row["smem_bytes"]), source)


def compile_instance(instance: Instance, *, arch: str) -> nvrtc.CompiledKernel:
    """Compile an instance for an architecture, or take it from the cache."""
    made = find(instance.kernel).specialization(instance)
    return nvrtc.compiled(made, arch)


def all_instances(kernels: Iterable[str] = ()) -> Iterator[Instance]:
    """Yield every instance of the CUDA kernels under their default policy, each once."""
    names = list(kernels) or list(cuda_kernels())
    for spec in map(find, names):
        groups = range(1, 17) if spec.operation == "decode" else (1,)
        for dtype, head_dim, layout in product(spec.dtypes, spec.head_dims, spec.layouts):
            sizes = {"dtype": dtype, "head_dim": head_dim, "layout": layout}
            shapes = [spec.shape(group=group, **sizes) for group in groups]
            # groups with the same number of query rows share a variant
            yield from dict.fromkeys(i for shape in shapes for i in spec.instances(shape))


def with_variants() -> Iterator[Instance]:
    """Yield each kernel's preferred tile with windows, soft caps and sinks, alone and together."""
    kernels = (spec for spec in cuda_kernels().values() if set(VARIED) <= {*spec.features})
    for spec, head_dim in product(kernels, VARIED_HEAD_DIMS):
        for window, cap, sinks in product((None, 1023), (None, 50.0), (False, True)):
            variant = AttentionVariant(window_left=window, soft_cap=cap, sinks=sinks)
            if variant.features:
                yield spec.instances(spec.shape(head_dim=head_dim, variant=variant))[0]


def widest() -> Iterator[Instance]:
    """Yield each kernel's preferred tile with each feature beyond VARIED alone, and with all."""
    asked: dict[str, tuple[str, Any]] = {"window": ("window_left", 1023), "bias": ("reach", 128)}
    asked["soft_cap"] = ("soft_cap", 50.0)
    for spec, head_dim in product(cuda_kernels().values(), VARIED_HEAD_DIMS):
        alone = [(feature,) for feature in spec.features if feature not in VARIED]
        for features in (*alone, spec.features) if alone else ():
            how = dict(asked.get(feature, (feature, True)) for feature in features)
            variant = AttentionVariant(**how)
            yield spec.instances(spec.shape(head_dim=head_dim, variant=variant))[0]


def compiler_row(instance: Instance, *, arch: str, started_utc: str) -> Row:
    """Compile an instance for an architecture; return its row of the table compiler_reports.

    Raises: CompileError.
    """
    report = compile_instance(instance, arch=arch).report
    return {
        **_identity(instance, arch),
        "registers": report.registers,
        "spill_bytes": report.spill_store_bytes,
        "smem_bytes": find(instance.kernel).smem(instance).total + report.static_smem_bytes,
        "compiler": f"NVRTC {nvrtc.nvrtc_version()}",
        "started_utc": started_utc,
    }


def recorded(instance: Instance, *, arch: str, path: Path = RECORDED) -> Row | None:
    """Return the recorded report on an instance, or None; needs no compiler.

    Raises: ValueError if a row of the file does not fit the table.
    """
    if not store.lying(path):
        return None
    found = store.select(store.read(path), _identity(instance, arch))
    return found[-1] if found else None


def recorded_as(instance: Instance) -> Row:
    """Return how the table compiler_reports names an instance; group is the tile's query rows."""
    return {
        "kernel": instance.kernel,
        "tile": instance.tile.label,
        "head_dim": instance.head_dim,
        "group": instance.rows,
        "dtype": instance.dtype,
        "kv": instance.layout,
        "features": "+".join(instance.features),
    }


def _identity(instance: Instance, arch: str) -> Row:
    entry = find(instance.kernel).specialization(instance).instance.partition("<")[0]
    return {**recorded_as(instance), "arch": arch, "entry": entry}
