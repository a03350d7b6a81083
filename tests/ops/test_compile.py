"""Every verb compiles into one graph of torch.compile, and attention runs under torch.func."""

import pytest
import torch

from labkernels import ops
from labkernels.kernels.caches.latent import LatentKV
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from tests.kernels.append.cases import append_case
from tests.kernels.backward.cases import backward_case
from tests.kernels.decode.cases import bits, decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case, sums

CASE, PREFILL, GRADIENT = decode_case((7, 40)), prefill_case((3,), (9,)), backward_case((3,), (9,))
PAGED, LATENT = prefill_case((3,), (9,), page_size=16), mla_case((1, 2), (7, 40))


OF_CACHE, OF_PAGES = CASE.cache.tensors.values(), PAGED.kv.tensors.values()
OF_LATENT, ROWS = (LATENT.q_nope, LATENT.q_pe), LATENT.kv.tensors.values()
TILE = {"kernel": "prefill_fma", "tile": "64x64x4x1x2"}
CUT = {"kernel": "decode_mma", "keys_per_split": 16, "scale": 0.1}
VERBS = {
    "decode": (lambda q, *cache: ops.decode(q, PagedKV(*cache), **CUT), (CASE.q, *OF_CACHE)),
    "prefill": (
        lambda q, k, v, ends_q, ends_k: ops.prefill(
            q, RaggedKV(k, v, ends_k), ends_q, causal=True, q_lens=(3,), splits=2
        ),
        (PREFILL.q, PREFILL.kv.k, PREFILL.kv.v, sums((3,)), sums((9,))),
    ),
    "prefill, paged": (
        lambda q, ends, *cache: ops.prefill(q, PagedKV(*cache), ends, **TILE),
        (PAGED.q, sums((3,)), *OF_PAGES),
    ),
    "varlen_qkvpacked": (
        lambda qkv, ends: ops.varlen_qkvpacked(qkv, ends, causal=True, batch_invariant=True),
        (torch.randn(5, 3, 2, 64).half(), sums((2, 3))),
    ),
    "mla_decode": (
        lambda q, pe, ends, *cache: ops.mla_decode(q, pe, LatentKV(*cache), ends, causal=False),
        (*OF_LATENT, sums((1, 2)), *ROWS),
    ),
    "mla_decode, one token each": (
        lambda q, pe, *cache: ops.mla_decode(q[:2], pe[:2], LatentKV(*cache)),
        (*OF_LATENT, *ROWS),
    ),
    "backward": (
        lambda *tensors: ops.backward(*tensors, causal=True, deterministic=True, scale=0.1),
        GRADIENT.arguments,
    ),
}


SLOPED = {"window_left": 5, "soft_cap": 3.0, "alibi": torch.full((4,), 0.1)}
SINKS, TREE = torch.tensor([0.0, 3.0, -1.0, 2.0]), ops.pack_mask([torch.eye(9)[:3] + 1 > 1.5])
VARIED = {
    "decode": lambda q, *cache, **how: ops.decode(q[:, :4], PagedKV(*cache), **how),
    "prefill": lambda q, k, v, ends, of_k, **how: ops.prefill(q, RaggedKV(k, v, of_k), ends, **how),
    "prefill, paged": lambda q, ends, *cache, **how: ops.prefill(q, PagedKV(*cache), ends, **how),
    "backward": lambda *tensors, **how: ops.backward(*tensors, deterministic=True, **how),
}
# torch's own use of what it has deprecated
old_jit = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def whole(function, backend="aot_eager"):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_compiles_whole_with_the_same_bits(verb):
    call, given = VERBS[verb]
    found = whole(lambda *given: call(*given).outputs())(*given)
    assert type(found) is type(call(*given).outputs())
    for mine, eager in zip(found, call(*given).outputs(), strict=True):
        assert torch.equal(bits(mine), bits(eager))


@pytest.mark.parametrize("verb", VARIED)
@pytest.mark.parametrize("turn", range(2))
def test_a_variant_compiles_whole_with_the_same_bits(verb, turn):
    how = (SLOPED, {"sinks": SINKS} | ({"mask": TREE} if "prefill" in verb else {}))[turn]
    call, given = VARIED[verb], VERBS[verb][1]
    found = whole(lambda *given: call(*given, **how).outputs())(*given)
    right = call(*given, **how).outputs()
    assert type(found) is type(right)
    for mine, eager in zip(found, right, strict=True):
        assert torch.equal(bits(mine), bits(eager))


@old_jit
@pytest.mark.parametrize("with_sinks", [False, True])
def test_variants_train_in_one_graph(with_sinks):
    ends, given = (sums((3,)), sums((9,))), (PREFILL.q, PREFILL.kv.k, PREFILL.kv.v, SINKS)

    def attend(q, k, v, sinks):
        sunk = {"sinks": sinks} if with_sinks else {}
        how = {"causal": True, "deterministic": True, **SLOPED, **sunk}
        return ops.attention(q, k, v, *ends, **how)[0]

    eager, compiled = ([x.detach().clone().requires_grad_() for x in given] for _ in range(2))
    attend(*eager).backward(PREFILL.q)
    whole(attend)(*compiled).backward(PREFILL.q)
    for mine, right in zip(compiled[: 3 + with_sinks], eager, strict=False):
        assert torch.equal(mine.grad, right.grad)


def test_a_mask_has_no_gradients():
    ends, leaves = (sums((3,)), sums((9,))), [x.requires_grad_() for x in tensors()]
    out, _ = torch.ops.labkernels.prefill(*leaves, *ends, mask=TREE)
    with pytest.raises(ValueError, match="mask is given, allowed: None with gradients"):
        out.sum().backward()


def test_a_cache_grows_and_is_read_in_one_graph():
    """An append alone, too, writes the cache of the caller."""
    q = torch.randn(5, 4, 64).half()

    def attend(q, cache, *new):
        first = ops.with_kvcache(q, cache, *new)
        return first.out + ops.prefill(q, cache, new[-1]).out

    def attend_rotated(q, *given):
        return ops.with_kvcache(q, *given, rotary=(torch.eye(64)[:, :32],) * 2).out

    for verb in (attend, attend_rotated, lambda q, *given: ops.append(*given).outputs()):
        eager, compiled = (append_case((7, 3), (40, 2)) for _ in range(2))
        right, found = verb(q, *eager.arguments), whole(verb)(q, *compiled.arguments)
        assert right is None or torch.equal(bits(found), bits(right))
        for mine, other in zip(compiled.storage, eager.storage, strict=True):
            assert torch.equal(bits(mine), bits(other))


@old_jit
def test_attention_trains_in_one_graph_of_inductor():
    """Attention stands alone in the graph, so that inductor needs no C++ compiler."""
    ends = (sums((3,)), sums((9,)))

    def attend(q, k, v):
        how = {"causal": True, "deterministic": True, "q_lens": (3,)}
        return ops.attention(q, k, v, *ends, **how)[0]

    given = [x.detach().clone() for x in (PREFILL.q, PREFILL.kv.k, PREFILL.kv.v)]
    eager, compiled = ([x.clone().requires_grad_() for x in given] for _ in range(2))
    attend(*eager).backward(PREFILL.q)
    whole(attend, "inductor")(*compiled).backward(PREFILL.q)
    for mine, right in zip(compiled, eager, strict=True):
        assert torch.equal(mine.grad, right.grad)


@pytest.mark.parametrize("name", ["out", "policy"])
def test_what_no_graph_holds_is_refused(name):
    given = {"out": torch.empty_like(CASE.q), "policy": "any"}
    with pytest.raises(torch._dynamo.exc.Unsupported, match=f"{name} is given in a graph"):
        whole(lambda q, cache: ops.decode(q, cache, **{name: given[name]}).out)(CASE.q, CASE.cache)


@pytest.mark.parametrize(
    ("case", "kernel"),
    [(CASE, "reference"), (PREFILL, "reference_prefill"), (LATENT, "reference_mla")],
)
def test_a_kernel_that_writes_another_type_is_refused(case, kernel):
    """torch was told that the output has q's type, and would read float64 as that type."""
    run = getattr(ops, case.verb)
    with pytest.raises(ValueError, match=f"kernel = '{kernel}' writes torch.float64"):
        whole(lambda *given: run(*given, kernel=kernel).out)(*case.arguments)


def value(q, k, v):
    ends = (PREFILL.cu_seqlens_q, PREFILL.kv.cu_seqlens)
    return ops.attention(q, k, v, *ends, causal=True)[0].float().square().sum()


def tensors():
    return [x.detach().clone() for x in (PREFILL.q, PREFILL.kv.k, PREFILL.kv.v)]


def test_attention_takes_a_tensor_that_outlived_torch_func():
    """Such a tensor is a wrapper without memory, which Function.apply unwraps."""
    q, k, v = tensors()
    kept = []
    torch.func.grad(lambda x: (kept.append(x), value(x, k, v))[1])(q)
    assert torch.equal(value(kept[0], k, v), value(q, k, v))


def test_torch_func_differentiates_attention():
    leaves = [x.requires_grad_() for x in tensors()]
    value(*leaves).backward()
    found = torch.func.grad(value, argnums=(0, 1, 2))(*tensors())
    for mine, leaf in zip(found, leaves, strict=True):
        assert torch.equal(mine, leaf.grad)
    q, k, v = tensors()
    wide = torch.randn(len(q), 4, 65).half()[..., 1:]  # rows that no kernel copies from
    grad = torch.func.grad(lambda q: value(q, k, v))
    assert torch.equal(grad(wide), grad(wide.contiguous()))


def second(q, k, v):
    q.requires_grad_()
    (first,) = torch.autograd.grad(value(q, k, v), q, create_graph=True)
    first.float().square().sum().backward()


REFUSED = {
    "a second derivative": second,
    "of grad": lambda q, k, v: torch.func.grad(
        lambda q: torch.func.grad(value)(q, k, v).float().sum()
    )(q),
    "forward mode": lambda q, k, v: torch.func.jvp(lambda q: value(q, k, v), (q,), (q,)),
    "vmap": lambda q, k, v: torch.func.vmap(lambda q: value(q, k, v))(torch.stack([q, q])),
    "jacrev": lambda q, k, v: torch.func.jacrev(
        lambda q: ops.attention(q, k, v, PREFILL.cu_seqlens_q, PREFILL.kv.cu_seqlens)[0]
    )(q),
}


@old_jit
@pytest.mark.parametrize("what", REFUSED)
def test_what_attention_cannot_be_asked_for_is_refused_in_words(what):
    with pytest.raises(ValueError, match=r"attention.*, allowed: "):
        REFUSED[what](*tensors())


def test_verbs_without_gradients_say_so_under_torch_func():
    def loss(q):
        return ops.decode(q, CASE.cache).out.sum()

    words = "allowed: (a tensor outside of torch.func|False, or torch.no_grad)"
    for transformed, q in ((torch.func.grad, CASE.q), (torch.func.vmap, CASE.q[None])):
        with pytest.raises(ValueError, match=words):
            transformed(loss)(q)
