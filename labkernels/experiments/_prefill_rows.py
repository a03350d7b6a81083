"""How a prefill and its gradients become rows of a measurement table."""

from labkernels.records.store import Row
from labkernels.workload import Backward, Prefill


def workload_columns(workload: Prefill | Backward) -> Row:
    """The columns that say what was computed."""
    return {
        "batch": workload.batch,
        "kv_len": max(workload.kv_lens),
        "q_len": max(workload.q_lens),
        "q_heads": workload.q_heads,
        "kv_heads": workload.kv_heads,
        "head_dim": workload.head_dim,
        "page_size": workload.page_size or 0,
        "causal": workload.causal,
        "dtype": workload.dtype,
    }
