"""The newest recorded counters show what they must."""

from contextlib import nullcontext
from math import prod

import pytest

from labkernels import hardware
from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.performance import counters as experiment
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.registry import discover
from labkernels.measure import resources
from labkernels.measure.profiling.counters import Counted, Profile
from labkernels.records import recorded, store

PATH = store.DATA_DIR / experiment.DATA_FILE


@pytest.fixture(scope="module")
def rows():
    """Return the rows of each call's newest run."""
    return recorded.newest_of_each(store.read(PATH), ("kernel", "tile", "head_dim"))


@pytest.fixture(scope="module")
def kernels(rows):
    """Return {(kernel, tile, head_dim, function): {metric: value}} of each call's newest run."""
    found = {}
    for row in rows:
        assert row["metric"] != "failed", row["note"]
        if row["metric"] != "refused":
            key = (row["kernel"], row["tile"], row["head_dim"], row["note"])
            found.setdefault(key, {})[row["metric"]] = row["value"]
    return found


def test_no_part_is_busier_than_all_the_time(kernels):
    percent = {name for name, unit in experiment.UNITS.items() if unit == "%"}
    for key, values in kernels.items():
        assert values["mma_peak"] / values["wgmma_peak"] == pytest.approx(2 / 3, abs=1e-4)
        for name in percent & set(values):
            assert 0 <= values[name] <= 101, (key, name)


# Rows and keys of FlashInfer's tiles without a mask, from getCTATileSize of its prefill_sm90.cuh.
FA3_TILES = {64: (192, 128), 128: (128, 192), 256: (128, 64)}


def padding(kernel, tile, head_dim):
    """Return (rows x keys of a request's tiles) / (rows x keys of the request)."""
    specs = resources.cuda_kernels()
    if kernel == experiment.FA3:
        rows, keys = FA3_TILES[head_dim]
    elif kernel not in specs:
        return 1.0
    elif tile:
        rows, keys = (int(number) for number in tile.split("x")[:2])
    else:
        shape = specs[kernel].shape(head_dim=head_dim, layout="ragged")
        default = specs[kernel].instance(shape, gpu=hardware.gpu("h200")).tile
        rows, keys = default.q_rows, default.keys
    return prod(-(-experiment.LENGTH // n) * n / experiment.LENGTH for n in (rows, keys))


@pytest.mark.parametrize("quick", [False, True])
def test_flashinfers_fa3_is_built_for_the_chosen_cells_and_counted_beside_torch(quick, monkeypatch):
    """The build comes before the profiler and once; its rows have the library's own columns."""
    done = []
    options = Options(only="d64 prefill|d128 prefill|gemm", quick=quick)
    recording = Recording(experiment.EXPERIMENT, options, experiment.EXPERIMENT.chosen(options))
    recording.sampling = nullcontext
    recording.build_peers = lambda operation, shapes: done.append((operation, sorted(shapes)))

    def profile(calls, **_):
        done.append([call.name for call in calls])
        told = [Counted(call, "kernel", {"time": 1.0}) for call in calls]
        return Profile(tuple(told), {}, {})

    monkeypatch.setattr(experiment.counters, "profile", profile)
    rows = [row for cell in recording.cells for _, row in experiment.rows(cell, recording)]
    head_dims = [128] if quick else [64, 128]
    builds = [item for item in done if isinstance(item, tuple)]
    assert builds == [("prefill", sorted(("bf16", n) for n in head_dims))]
    assert done.index(builds[0]) < min(i for i, names in enumerate(done) if "torch_fa2" in names)
    ours = [row for row in rows if row["kernel"] == "flashinfer_fa3"]
    assert [row["head_dim"] for row in ours] == head_dims
    wanted = {"backend": "flashinfer", "tensor_cores": "on", "tile": "", "policy": ""}
    assert all(row.items() >= wanted.items() for row in ours)


def test_tensor_cores_did_the_flops_of_the_formula(kernels):
    gpu = hardware.gpu("h200")
    checked = 0
    for (kernel, tile, head_dim, _), values in kernels.items():
        ours = discover().get(kernel)
        if "backward" in kernel or (ours and ours.operation != "prefill"):
            continue
        if not head_dim or values.get("tensor_flops", 0) == 0:
            continue
        lengths = (experiment.LENGTH,) * experiment.BATCH
        heads = experiment.CHANNELS // head_dim
        flops = values["tensor_flops"] * values["time"] * values["sm_clock"] * gpu.sm_count
        workload = Prefill(lengths, lengths, heads, heads, head_dim)
        ratio = flops / workload.flops
        assert 0.99 <= ratio <= 1.01 * padding(kernel, tile, head_dim), kernel
        checked += 1
    assert checked >= 6
