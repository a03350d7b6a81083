"""The probe, the torch model and the recorded tiles against the two models of the tensor core."""

import numpy as np
import pytest
import torch

from labkernels.cuda import host
from labkernels.experiments import _tensor_core_tiles as families
from labkernels.experiments import tensor_core_arithmetic as experiment
from labkernels.experiments._tensor_core_model import tile_products
from labkernels.numerics import rounding, tensor_core
from labkernels.records import schema, store

ALL_FAMILIES = families.FAMILIES + families.ADVERSARIAL
UNIT = tensor_core.unit_of("sm_90", "fp16")
SAMPLE = store.DATA_DIR / experiment.sample_name("sm_90")


def draw(family, dtype, n, seed=3):
    return families.draw_tiles(family, dtype, n, torch.Generator().manual_seed(seed))


def bits(x):
    return x.numpy().view(np.uint32)


def words(x):
    return x.contiguous().view(torch.int16).numpy().view(np.uint16)


def in_numpy(a_bits, b_bits, c, arch, dtype):
    a, b = (rounding.from_bits(x, dtype) for x in (a_bits, b_bits))
    return tensor_core.matmul(a, b, c, arch=arch, fmt=dtype).view(np.uint32)


def cpu_probe(a, b, c, dtype):
    """The probe kernel, built for the CPU."""
    kernel = host.build(
        experiment.HEADER, instance=experiment.PROBES[dtype], params="lab::MmaParams"
    )
    tensors = {"a": a, "b": b.transpose(1, 2).contiguous(), "c": c}
    tensors["d"] = torch.full_like(c, float("nan"))
    kernel.launch(
        grid=(len(a) // experiment.TILES_PER_BLOCK, 1, 1),
        threads=experiment.THREADS,
        smem_bytes=0,
        params=experiment.MmaParams(*(x.data_ptr() for x in tensors.values())),
        ranges=[
            host.GlobalRange(name, x.data_ptr(), x.nbytes, writable=name == "d")
            for name, x in tensors.items()
        ],
    )
    return tensors["d"]


@pytest.mark.parametrize("dtype", families.DTYPES)
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_the_torch_model_has_the_bits_of_the_numpy_model(family, dtype):
    a, b, c = draw(family, dtype, 88)  # 11264 outputs, 202752 in all
    for arch in ("sm_80", "sm_90"):
        got = tile_products(a, b, c, tensor_core.unit_of(arch, dtype))
        assert (bits(got) == in_numpy(words(a), words(b), c.numpy(), arch, dtype)).all()


@pytest.mark.parametrize("dtype", families.DTYPES)
def test_the_families_reach_what_they_are_named_for(dtype):
    d = {family: tile_products(*draw(family, dtype, 32), UNIT) for family in ALL_FAMILIES}
    assert d["normal"].isfinite().all()
    assert d["specials"].isnan().any()
    assert d["specials"].isinf().any()
    assert d["random bits"].isnan().any()
    if dtype == "bf16":
        assert d["overflow"].isinf().float().mean() > 0.1
        tiny = (d["subnormal"] != 0) & (d["subnormal"].abs() < 2.0**-126)
        assert tiny.float().mean() > 0.1
    else:
        a, _, _ = draw("subnormal", dtype, 32)
        assert (a.abs().double() < 2.0**-14).double().mean() > 0.5
    a, b, _ = draw("cancellation", dtype, 32)
    terms = torch.bmm(a.double().abs(), b.double().abs())
    assert (d["cancellation"].abs() < terms / 64).double().mean() > 0.9


def test_the_probe_and_the_count_of_mismatches(tmp_path):
    counts, sample = experiment.try_models(
        cpu_probe, UNIT, tiles=(32, 16), generator=torch.Generator().manual_seed(1), say=len
    )
    assert list(experiment.failures(counts)) == []
    named = {count[:3]: count[3] for count in counts}
    assert named["fp16", "normal", "outputs"] == 32 * 128
    assert named["bf16", "specials", "outputs"] == 16 * 128
    for label in ("24 fraction bits", "26 fraction bits", "chunk 8"):
        for dtype in families.DTYPES:
            assert named[dtype, "sign pairs", label] > 100
    check_sample(sample)
    for name in ("first", "second"):
        np.savez_compressed(tmp_path / f"{name}.npz", **sample)
    first, second = ((tmp_path / f"{name}.npz").read_bytes() for name in ("first", "second"))
    assert first == second
    assert len(first) < 300_000


def test_a_wrong_unit_and_a_model_not_rejected_are_failures():
    def ampere(a, b, c, dtype):
        return tile_products(a, b, c, tensor_core.unit_of("sm_80", dtype))

    generator = torch.Generator().manual_seed(2)
    counts, _ = experiment.try_models(ampere, UNIT, tiles=(8, 8), generator=generator, say=len)
    wrong = list(experiment.failures(counts))
    assert any(line.startswith("fp16, normal: ") for line in wrong)
    equal = [("fp16", "normal", label, 0) for label in ("outputs", "the model", "chunk 8")]
    expected = "fp16, normal: a model with chunk 8 is not rejected"
    assert list(experiment.failures(equal)) == [expected]


def test_a_quick_run_never_replaces_the_recorded_one():
    with pytest.raises(ValueError, match="must be whole"):
        experiment.run(experiment.Options(quick=True, commit="0000000"))


def check_sample(sample):
    """NumPy's model and the CPU build's give every output of the sample."""
    shape = (len(families.DTYPES), len(ALL_FAMILIES), experiment.SAMPLE_TILES, 16)
    assert sample["d"].shape == sample["c"].shape == (*shape, 8)
    assert sample["a"].shape == (*shape, 16)
    for i, dtype in enumerate(families.DTYPES):
        a, b, c, d = (sample[name][i].reshape(-1, 16, sample[name].shape[-1]) for name in "abcd")
        c = c.view(np.float32)
        assert (in_numpy(a, b, c, "sm_90", dtype) == d).all()
        model = host.tensor_core_matmul(a, b, c, arch="sm_90", dtype=dtype)
        assert (model.view(np.uint32) == d).all()


def test_the_models_give_the_outputs_of_the_gpu():
    if not SAMPLE.exists():
        pytest.skip(f"{SAMPLE.name} is not recorded yet: it needs a GPU of sm_90")
    assert SAMPLE.stat().st_size < 300_000
    with np.load(SAMPLE) as sample:
        check_sample(dict(sample))


def test_the_recorded_counts():
    path = store.DATA_DIR / experiment.DATA_FILE
    if not path.exists():
        pytest.skip(f"{path.name} is not recorded yet: it needs a GPU")
    rows = store.newest(store.read(path))
    counts = {(row["dtype"], row["metric"]): row["value"] for row in rows}
    for dtype in families.DTYPES:
        for names, least in ((families.FAMILIES, 1e8), (families.ADVERSARIAL, 1e5)):
            assert sum(counts[dtype, f"outputs, {family}"] for family in names) >= least
            assert all(counts[dtype, f"mismatches, {family}, the model"] == 0 for family in names)
        for label, _ in list(experiment.models(UNIT))[1:]:
            assert all(
                counts[dtype, f"mismatches, {family}, {label}"] > 0 for family in families.FAMILIES
            )


def test_rows_fit_the_table():
    row = experiment._row(("bf16", "wide", "chunk 8", 12))
    assert row["metric"] == "mismatches, wide, chunk 8"
    assert {field.name for field in schema.MEASUREMENTS.fields} - set(row) == {
        field.name for field in schema.PROVENANCE
    }
