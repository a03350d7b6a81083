"""The probes, the torch model and the recorded tiles agree with both models of the tensor core."""

import numpy as np
import pytest
import torch

from labkernels.cuda.host import build
from labkernels.experiments.hardware import tensor_core_arithmetic as experiment
from labkernels.experiments.hardware import tiles as families
from labkernels.experiments.hardware.instructions import HEADER, INSTRUCTIONS, MmaParams
from labkernels.experiments.hardware.torch_model import tile_products
from labkernels.numerics import rounding
from labkernels.numerics.emulation import tensor_core
from labkernels.records import store
from tests.cuda import cpu_tensor_core

ALL_FAMILIES = families.FAMILIES + families.ADVERSARIAL
NAMES = [instruction.name for instruction in INSTRUCTIONS]
SAMPLE = store.DATA_DIR / experiment.sample_name("sm_90")


def draw(family, fmt, n, seed=3, **shape):
    generator = torch.Generator().manual_seed(seed)
    return families.draw_tiles(family, fmt, n, generator, **shape)


def in_numpy(a_bits, b_bits, c, fmt, out, arch="sm_90", widened=False):
    a, b = (rounding.from_bits(x, fmt) for x in (a_bits, b_bits))
    if widened:
        return bits(tensor_core.widened_matmul(a, b, c, fmt=fmt))
    return bits(tensor_core.matmul(a, b, c, arch=arch, fmt=fmt, out=out))


def bits(x):
    return x.view(f"u{x.itemsize}")


def cpu_probe(instruction, a, b, c):
    """Run the probe kernel, built for the CPU."""
    kernel = build.build(HEADER, instance=instruction.probe, params="lab::MmaParams")
    tensors = {"a": a, "b": b.transpose(1, 2).contiguous(), "c": c}
    tensors["d"] = torch.full_like(c, float("nan"))
    kernel.launch(
        grid=(len(a) // instruction.tiles_per_block, 1, 1),
        threads=instruction.threads,
        smem_bytes=instruction.smem_bytes,
        params=MmaParams(*(x.data_ptr() for x in tensors.values())),
        ranges=[
            build.GlobalRange(name, x.data_ptr(), x.nbytes, writable=name == "d")
            for name, x in tensors.items()
        ],
    )
    return tensors["d"]


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=NAMES)
def test_the_torch_model_has_the_bits_of_the_numpy_model(instruction):
    shape = {"mnk": (16, 8, instruction.k), "out": instruction.out}
    for family in ALL_FAMILIES:
        a, b, c = draw(family, instruction.fmt, 40, **shape)
        (label, evaluate), *_ = experiment.models(instruction)
        assert label == experiment.MODEL
        got = experiment._bits(evaluate(a, b, c))
        operands = experiment._bits(a), experiment._bits(b), c.numpy()
        want = in_numpy(*operands, instruction.fmt, instruction.out, widened=instruction.widened)
        assert (got == want).all(), family


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "tf32", "e4m3", "e5m2"])
def test_the_families_reach_what_they_are_named_for(fmt):
    unit = tensor_core.unit_of("sm_90", fmt)
    shape = {"mnk": (16, 8, unit.chunk)}
    d = {name: tile_products(*draw(name, fmt, 32, **shape), unit, fmt) for name in ALL_FAMILIES}
    assert d["normal"].isfinite().all()
    assert d["specials"].isnan().any()
    assert d["specials"].isinf().any()
    if fmt in ("bf16", "tf32"):
        assert d["overflow"].isinf().float().mean() > 0.1
        tiny = (d["subnormal"] != 0) & (d["subnormal"].abs() < 2.0**-126)
        assert tiny.float().mean() > 0.1
    a, b, _ = draw("cancellation", fmt, 32, **shape)
    terms = torch.bmm(a.double().abs(), b.double().abs())
    limit = 4 if fmt in ("e4m3", "e5m2") else 64
    assert (d["cancellation"].abs() < terms / limit).double().mean() > 0.9


def test_the_probes_and_the_count_of_mismatches(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "SAMPLE_TILES", 1)
    counts, sample = experiment.try_models(
        cpu_probe,
        INSTRUCTIONS,
        outputs=(1 << 12, 1 << 12),
        generator=torch.Generator().manual_seed(1),
        say=len,
    )
    assert list(experiment.failures(counts)) == []
    named = {count[:3]: count[3] for count in counts}
    assert named["wgmma.m64n64k16.fp32.fp16", "normal", "outputs"] == 1 << 12
    for label in ("24 fraction bits", "26 fraction bits", "chunk 8"):
        assert named["mma.sync.m16n8k16.fp32.bf16", "sign pairs", label] > 30
    check_sample(sample)
    for name in ("first", "second"):
        np.savez_compressed(tmp_path / f"{name}.npz", **sample)
    first, second = ((tmp_path / f"{name}.npz").read_bytes() for name in ("first", "second"))
    assert first == second
    assert len(first) < 1 << 20


def test_a_wrong_unit_and_a_model_not_rejected_are_failures():
    def ampere(instruction, a, b, c):
        unit = tensor_core.unit_of("sm_80", instruction.fmt)
        return tile_products(a, b, c, unit, instruction.fmt)

    generator = torch.Generator().manual_seed(2)
    counts, _ = experiment.try_models(
        ampere, INSTRUCTIONS[:1], outputs=(1 << 12, 1 << 12), generator=generator, say=len
    )
    wrong = list(experiment.failures(counts))
    assert any(line.startswith("mma.sync.m16n8k16.fp32.fp16, normal: ") for line in wrong)
    equal = [("mma", "normal", label, 0) for label in ("outputs", "the model", "chunk 8")]
    assert list(experiment.failures(equal)) == ["mma: a model with chunk 8 is not rejected"]


def check_sample(sample):
    """Assert that NumPy's model and the CPU build's give every output of the sample."""
    for instruction in INSTRUCTIONS:
        a, b, c, d = (sample[f"{instruction.name} {operand}"] for operand in "abcd")
        head = (len(ALL_FAMILIES), experiment.SAMPLE_TILES)
        assert a.shape == (*head, 16, instruction.k)
        assert c.shape == d.shape == (*head, 16, 8)
        a, b, c, d = (x.reshape(-1, *x.shape[2:]) for x in (a, b, c, d))
        c = c.view(f"f{c.itemsize}")
        fmt, out = instruction.fmt, instruction.out
        numpy_bits = in_numpy(a, b, c, fmt, out, widened=instruction.widened)
        assert (numpy_bits == d).all(), instruction.name
        if not instruction.widened:
            model = cpu_tensor_core.matmul(a, b, c, arch="sm_90", fmt=fmt, out=out)
            assert (bits(model) == d).all(), instruction.name


def test_the_models_give_the_outputs_of_the_gpu():
    if not SAMPLE.exists():
        pytest.skip(f"{SAMPLE.name} is not recorded yet: it needs a GPU of sm_90")
    assert SAMPLE.stat().st_size < 1 << 20
    with np.load(SAMPLE) as sample:
        check_sample(dict(sample))


def test_the_recorded_counts():
    path = store.DATA_DIR / experiment.DATA_FILE
    if not path.exists():
        pytest.skip(f"{path.name} is not recorded yet: it needs a GPU")
    rows = store.newest(store.read(path))
    counts = {(row["kernel"], row["metric"]): row["value"] for row in rows}
    total = {"mma": 0, "wgmma": 0}
    for instruction in INSTRUCTIONS:
        count = {metric: value for (name, metric), value in counts.items()
                 if name == instruction.name}  # fmt: skip
        for names, least in ((families.FAMILIES, 6e7), (families.ADVERSARIAL, 1e5)):
            outputs = sum(count[f"outputs, {family}"] for family in names)
            assert outputs >= least
            assert all(count[f"mismatches, {family}, the model"] == 0 for family in names)
        total[instruction.name.split(".")[0]] += sum(
            count[f"outputs, {family}"] for family in families.FAMILIES
        )
        for label, _ in list(experiment.models(instruction))[1:]:
            assert sum(count[f"mismatches, {family}, {label}"] for family in ALL_FAMILIES) > 0
    assert min(total.values()) >= 1e8
