import pytest

PROVENANCE = {
    "commit": "abc1234def",
    "dirty": False,
    "gpu": "NVIDIA H200",
    "driver": "580.0",
    "cuda": "13.0",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "sm_clock_mhz": 1980.0,
    "power_w": 512.5,
    "seed": 0,
    "repeats": 50,
    "started_utc": "2026-12-01T09:30:00Z",
}


@pytest.fixture
def row():
    return {
        "experiment": "decode_tensor_cores",
        "kernel": "decode_mma",
        "backend": "cuda",
        "tensor_cores": "on",
        "tile": "k16",
        "policy": "",
        "batch": 57,
        "kv_len": 8192,
        "q_heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "page_size": 16,
        "dtype": "bf16",
        "metric": "time_graph",
        "statistic": "median",
        "value": 4.39e-4,
        "unit": "s",
        "note": "",
        **PROVENANCE,
    }
