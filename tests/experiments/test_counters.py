"""What the newest recorded counters must show."""

import pytest

from labkernels import hardware
from labkernels.experiments import counters as experiment
from labkernels.records import recorded, store
from labkernels.workload import Prefill

PATH = store.DATA_DIR / experiment.DATA_FILE


@pytest.fixture(scope="module")
def kernels():
    """Return {(kernel, tile, head_dim, function): {metric: value}} of each call's newest run."""
    if not PATH.exists():
        pytest.skip(f"{PATH.name} is not recorded yet")
    found = {}
    for row in recorded.newest_of_each(store.read(PATH), ("kernel", "tile", "head_dim")):
        assert row["metric"] != "failed", row["note"]
        if row["metric"] != "refused":
            key = (row["kernel"], row["tile"], row["head_dim"], row["note"])
            found.setdefault(key, {})[row["metric"]] = row["value"]
    return found


def test_what_the_chapter_shows_is_there(kernels):
    assert {0, 64, 128} <= {key[2] for key in kernels} <= {0, *experiment.HEAD_DIMS}
    names = {key[0] for key in kernels}
    assert {"prefill_fma", "prefill_mma", "torch_fa2", "torch_cudnn", "cublas"} <= names
    assert any("backward" in name for name in names)


def test_no_part_is_busier_than_all_the_time(kernels):
    percent = {name for name, unit in experiment.UNITS.items() if unit == "%"}
    for key, values in kernels.items():
        for name in percent & set(values):
            assert 0 <= values[name] <= 101, (key, name)


def test_tensor_cores_did_the_flops_of_the_formula(kernels):
    gpu = hardware.gpu("h200")
    checked = 0
    for (kernel, _, head_dim, _), values in kernels.items():
        if "backward" in kernel or not head_dim or values.get("tensor_flops", 0) == 0:
            continue
        lengths = (experiment.LENGTH,) * experiment.BATCH
        heads = experiment.CHANNELS // head_dim
        flops = values["tensor_flops"] * values["time"] * values["sm_clock"] * gpu.sm_count
        workload = Prefill(lengths, lengths, heads, heads, head_dim)
        assert flops == pytest.approx(workload.flops, rel=0.01), kernel
        checked += 1
    assert checked >= 6


def test_mma_sync_has_two_thirds_of_what_wgmma_has(kernels):
    for values in kernels.values():
        assert values["mma_peak"] / values["wgmma_peak"] == pytest.approx(2 / 3, abs=1e-4)
