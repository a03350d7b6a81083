"""The verb mla_decode checks its arguments, and chooses a kernel and a tile."""

import re

import pytest

torch = pytest.importorskip("torch")

from labkernels import (  # noqa: E402
    hardware,
    ops,
)
from labkernels.kernels import choice as arguments  # noqa: E402
from labkernels.kernels.caches.latent import LatentKV  # noqa: E402
from labkernels.kernels.kernel import HOPPER  # noqa: E402
from labkernels.kernels.registry import discover  # noqa: E402
from tests.kernels.decode.cases import bits  # noqa: E402
from tests.kernels.mla.cases import mla_case  # noqa: E402
from tests.kernels.prefill.cases import sums  # noqa: E402

Q_LENS, KV_LENS = (1, 2), (5, 33)


def parts(**changes):
    """Return the arguments of the verb; functions in `changes` replace those they name."""
    case = mla_case(Q_LENS, KV_LENS)
    tensors = {
        "q_nope": case.q_nope,
        "q_pe": case.q_pe,
        "ckv": case.kv.ckv,
        "kpe": case.kv.kpe,
        "page_table": case.kv.page_table,
        "kv_len": case.kv.kv_len,
        "cu_seqlens_q": case.cu_seqlens_q,
    }
    return tensors | {name: change(tensors[name].clone()) for name, change in changes.items()}


def call(tensors, **options):
    kv = LatentKV(*(tensors[name] for name in ("ckv", "kpe", "page_table", "kv_len")))
    q = (tensors["q_nope"], tensors["q_pe"])
    return ops.mla_decode(*q, kv, tensors["cu_seqlens_q"], **options)


BAD = [
    ({"q_nope": lambda x: x[0]}, "q_nope.shape = (5, 512), allowed: [total, heads, 512]"),
    ({"q_nope": lambda x: x[..., :256]}, "q_nope.shape = (3, 5, 256), allowed: [total, heads, 512"),
    ({"q_pe": lambda x: x[..., :32]}, "q_pe.shape = (3, 5, 32), allowed: [total, heads, 64]"),
    ({"q_pe": lambda x: x[:, :3]}, "q_pe.shape[:2] = (3, 3), allowed: (3, 5), as q_nope"),
    ({"q_nope": lambda x: x.half()}, "q_nope.dtype = torch.float16, allowed: torch.bfloat16, as"),
    (
        {name: lambda x: x.repeat(1, 26, 1) for name in ("q_nope", "q_pe")},
        "q_nope.shape[1] = 130 heads, allowed: 1 to 128",
    ),
    ({"ckv": lambda x: x[..., :256]}, "ckv.shape[2] = 256, allowed: 512"),
    ({"kpe": lambda x: x[..., :32]}, "kpe.shape[2] = 32, allowed: 64"),
    ({"kpe": lambda x: x[:-1]}, "as ckv"),
    ({"kpe": lambda x: x.half()}, "kpe.dtype = torch.float16, allowed: torch.bfloat16, as ckv"),
    ({"ckv": lambda x: x.float()}, "ckv.dtype = torch.float32, allowed: torch.float16, torch.bf"),
    ({"ckv": lambda x: x[:, :0], "kpe": lambda x: x[:, :0]}, "ckv.shape[1] = 0 page_size"),
    ({"page_table": lambda x: x.long()}, "page_table.dtype = torch.int64, allowed: torch.int32"),
    ({"page_table": lambda x: x.fill_(99)}, "page_table[0, 0] = 99, allowed: 0 to"),
    ({"kv_len": lambda x: x.fill_(999)}, "kv_len[0] = 999, allowed: 0 to"),
    ({"cu_seqlens_q": lambda x: x[:2]}, "len(cu_seqlens_q) = 2, allowed: 3, the requests"),
    ({"cu_seqlens_q": lambda x: x - x}, "cu_seqlens_q[-1] = 0, allowed: 3, the rows that there"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[text for _, text in BAD])
def test_bad_tensors_are_named(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(parts(**changes))


def test_as_many_tokens_as_a_prefill_has_are_refused():
    case = mla_case((129,), (9,), heads=1)
    with pytest.raises(ValueError, match="a request of 129 tokens, allowed: 0 to 128"):
        case.run(None)


OPTIONS = [
    ({"kernel": "decode_mma"}, "kernel = 'decode_mma', allowed: reference_mla, mla_fma"),
    ({"kernel": "mla_mma", "tile": "1x1"}, "tile = '1x1', allowed for mla_mma: "),
    ({"splits": 0}, "splits = 0, allowed: 1 to"),
    ({"splits": 2, "keys_per_split": 64}, "allowed: one of the two"),
    ({"scale": -1.0}, "scale = -1.0, allowed: a positive number"),
    ({"target": "v100"}, "target = 'v100', allowed: "),
    ({"out": torch.empty(3, 5, 512)}, "out.dtype = torch.float32, allowed: torch.bfloat16"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=[text for _, text in OPTIONS])
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(parts(), **options)


def test_the_scale_is_that_of_the_heads_before_absorption():
    case = mla_case(Q_LENS, KV_LENS)
    plain = call(parts())
    assert torch.equal(bits(plain.out), bits(case.run(None, scale=192**-0.5).out))


@pytest.mark.parametrize("key", hardware.GPUS)
def test_what_is_chosen_is_what_the_gpu_can_run_and_is_said(key):
    gpu = hardware.gpu(key)
    case = mla_case((1,), (20,), heads=128)
    plan = case.run(None, target=key).plan
    best = arguments.preferred("mla")
    able = [spec.name for spec in best if arguments.missing(spec, gpu) is None]
    assert plan.kernel == able[0]
    assert plan.why.startswith(f"{able[0]}: the first of ")
    assert gpu.name in plan.why
    assert all(spec.name in plan.why for spec in best)
    assert plan.smem_bytes <= gpu.smem_per_block_max_bytes
    named = case.run("mla_fma", target=key).plan
    assert named.kernel == "mla_fma"
    assert named.why.startswith("mla_fma: named by the caller")


def test_few_rows_do_not_fill_a_tile_of_wgmma():
    """The kernel that is chosen for 128 heads is not chosen for 16, but runs if it is named."""
    wide, few = (mla_case((1,), (20,), heads=heads) for heads in (128, 16))
    assert wide.run(None).plan.kernel == "mla_wgmma"
    plan = few.run(None).plan
    assert plan.kernel == "mla_mma"
    assert "mla_wgmma is for 17 rows or more" in plan.why
    assert few.run("mla_wgmma").plan.kernel == "mla_wgmma"


@pytest.mark.parametrize(
    ("key", "tile"), [("h200", "64x64x8x2x1"), ("a100", "64x32x8x2x1"), ("rtx4090", "64x16x8x1x1")]
)
def test_the_tile_follows_shared_memory(key, tile):
    case = mla_case((1,), (20,), heads=128)
    plan = case.run("mla_mma", target=key).plan
    assert plan.tile == tile
    assert plan.why.endswith(f"; tile {tile}: the first that fits")


def test_a_named_kernel_that_the_gpu_cannot_run_is_refused_and_the_choice_is_named():
    newer = discover()["mla_mma"]
    hopper = newer.changed(name="mla_hopper", needs=HOPPER)
    case = mla_case((1,), (20,))
    for key in ("a100", "b200"):
        gpu = hardware.gpu(key)
        message = f"kernel = 'mla_hopper' needs sm_90a, this is {gpu.name} ({gpu.arch}, "
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            case.run(hopper, target=key)
        assert "which would be chosen if none were named" in str(caught.value)
        assert case.run(None, target=key).plan.kernel in str(caught.value)
    assert hopper.needs.include("sm_90")
    assert not hopper.needs.include("sm_100")


def test_a_step_runs_again_with_other_pages():
    case = mla_case((1, 2), (40, 40), layout="nhd")
    kv = LatentKV(case.kv.ckv, case.kv.kpe, case.kv.page_table.clone(), case.kv.kv_len)
    inputs = (case.q_nope, case.q_pe, kv, case.cu_seqlens_q)
    step = ops.mla_decode_step(*inputs)
    for order in ([0, 1], [1, 0]):
        kv.page_table.copy_(case.kv.page_table[order])
        step.out.fill_(torch.nan)
        step.run()
        assert torch.equal(bits(step.out), bits(ops.mla_decode(*inputs).out))


def test_a_cache_without_pages_serves_requests_without_keys():
    ckv, kpe = (torch.empty(0, 16, n, dtype=torch.bfloat16) for n in (512, 64))
    empty = LatentKV(ckv, kpe, torch.empty(2, 0, dtype=torch.int32), sums((0,)))
    q = torch.randn(3, 4, 512).bfloat16(), torch.randn(3, 4, 64).bfloat16()
    result = ops.mla_decode(*q, empty, sums((1, 2)))
    assert not result.out.any()
