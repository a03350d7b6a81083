"""FlashInfer's kernels of 8 bits are called rightly; torch stands in for the package."""

import sys
from types import ModuleType

import pytest
import torch

from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import Normal
from labkernels.measure.judge.judge import judge_of
from labkernels.measure.peers import flashinfer_8_bits
from labkernels.measure.peers.peer import peers_of

WORK = Decode.uniform(3, 300, q_heads=8, kv_heads=2, kv_dtype="e4m3")
PEERS = peers_of(flashinfer_8_bits.OPERATION)


def computed(q, pools, table, lengths, score_scale, value_scale, out):
    """Decode as both kernels do: Q in e4m3, P times 448 in e4m3, the sum of P before that."""
    cache, q = PagedKV(*(x.half() for x in pools), table, lengths), q.to(torch.float8_e4m3fn)
    for row, query in enumerate(q.double()):
        k, v = (x.double() for x in cache.of_request(row))
        s = score_scale * torch.einsum("hgd,khd->hgk", query.unflatten(0, (k.shape[1], -1)), k)
        p = torch.exp(s - s.amax(-1, keepdim=True))
        rounded = (448 * p).to(torch.float8_e4m3fn).double() / 448
        o = torch.einsum("hgk,khd->hgd", rounded, v) / p.sum(-1, keepdim=True)
        out[row] = (value_scale * o).flatten(0, 1)


class Wrapper:
    def __init__(self, workspace, layout, *, use_tensor_cores, backend):
        assert (layout, use_tensor_cores, backend) == ("NHD", True, "fa3")

    def plan(self, indptr, indices, last, *sizes, sm_scale, **types):
        assert types["q_data_type"] == types["kv_data_type"] == torch.float8_e4m3fn
        assert types["o_data_type"] == torch.bfloat16
        assert sizes == (8, 2, 128, 16)
        self.table = indices.view(3, -1)
        self.lengths = 16 * (indptr.diff() - 1) + last
        self.scale = sm_scale

    def run(self, q, pools, q_scale, k_scale, v_scale, *, out):
        scale = self.scale * q_scale * k_scale
        computed(q, pools, self.table, self.lengths, scale, v_scale, out)


def xqa(q, pools, space, table, lengths, max_seq_len, bmm1_scale, bmm2_scale, *, out):
    assert max_seq_len >= 300
    assert not space.any()
    computed(q, pools, table, lengths.view(torch.int32), bmm1_scale, bmm2_scale, out)


@pytest.fixture(autouse=True)
def _package(monkeypatch):
    package, decode = ModuleType("flashinfer"), ModuleType("flashinfer.decode")
    package.__version__, package.BatchDecodeWithPagedKVCacheWrapper = "1", Wrapper
    decode.xqa_batch_decode_with_kv_cache = xqa
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.decode", decode)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.mark.parametrize("name", PEERS)
def test_scales_and_pages_are_given_rightly_and_judged_by_a_policy_of_8_bits(name):
    inputs, peer = flashinfer_8_bits.inputs(WORK, Normal(0, "cpu")), PEERS[name]
    judge, step = judge_of("decode", inputs), peer.steps[flashinfer_8_bits.OPERATION](inputs)
    step.outputs().out.fill_(float("nan"))
    step.run()
    assert judge(step.outputs(), peer.policy).passed
    step.outputs().out.mul_(1.3)
    assert not judge(step.outputs(), peer.policy).passed
