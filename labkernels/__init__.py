"""labkernels: attention kernels that a laptop can run, with checkable budgets and errors.

The names below are imported when first used, so that `import labkernels.budget` needs no torch.
"""

import importlib

__version__ = "0.1.0"

_HOMES = {
    "decode": "labkernels.ops",
    "decode_step": "labkernels.ops",
    "prefill": "labkernels.ops",
    "varlen_qkvpacked": "labkernels.ops",
    "with_kvcache": "labkernels.ops",
    "mla_decode": "labkernels.ops",
    "merge_states": "labkernels.ops",
    "cascade_decode": "labkernels.ops",
    "backward": "labkernels.ops",
    "attention": "labkernels.ops",
    "PagedKV": "labkernels.kernels.caches.paged",
    "QuantizedKV": "labkernels.kernels.caches.paged",
    "RaggedKV": "labkernels.kernels.caches.ragged",
    "LatentKV": "labkernels.kernels.caches.latent",
    "NumericPolicy": "labkernels.policy",
    "discover": "labkernels.kernels.registry",
    "verdict": "labkernels.audit.verdict",
    "compare": "labkernels.audit.comparison",
    "Decode": "labkernels.kernels.decode.workload",
    "Prefill": "labkernels.kernels.prefill.workload",
    "Backward": "labkernels.kernels.backward.workload",
    "MlaDecode": "labkernels.kernels.mla.workload",
    "gpu": "labkernels.hardware",
    "occupancy": "labkernels.budget",
    "waves": "labkernels.budget",
    "error_table": "labkernels.numerics.metrics",
    "attention_float64": "labkernels.numerics.truth.oracle",
    "scoreboard": "labkernels.records.scoreboard",
    "probe": "labkernels.probing",
    "Bench": "labkernels.bench",
    "source": "labkernels.bench",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"labkernels has no name {name!r}; it has {', '.join(_HOMES)}")
    try:
        home = importlib.import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if _HOMES[name] != "labkernels.bench" or (error.name or "").startswith("labkernels"):
            raise
        words = f"labkernels.{name} needs {error.name}: pip install 'labkernels[plots]'"
        raise ModuleNotFoundError(words, name=error.name) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
