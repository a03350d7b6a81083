"""Held-out cases A: attention kernels with one mistake, and right ones."""
import functools, math
from dataclasses import dataclass
from typing import Callable
import torch
from labkernels.defects import *  # noqa: F403

@dataclass(frozen=True)
class Case:
    name: str
    layout: str
    dtype: str
    causal: bool
    make: Callable[[], Callable]
    classes: tuple[str, ...]
    place: dict
    words: str

CASES: list[Case] = []
DT = {"fp16": torch.float16, "bf16": torch.bfloat16}
same = lambda x, *a: x

# ---- callables: a block-wise online softmax of one request with hooks
class O:
    """Options of `core` and the wrappers; a bug or a right variant sets some of them."""
    block, split, pdt, rounded_l, lazy, partdt, exp2, order = 32, 0, None, False, 0.0, None, None, 1
    two_pass = False; lse = None
    q = k = v = staticmethod(same)
    score = staticmethod(lambda s, key0, limit, c: s)
    seen = staticmethod(lambda limit, n, c: limit)
    alpha = staticmethod(lambda a, i: a)      # factor for o
    alpha_l = staticmethod(lambda a, i: a)    # factor for l
    prob = staticmethod(lambda p, i, c: p)
    pv = staticmethod(lambda x, p, v: x)
    acc = staticmethod(same)
    weight = staticmethod(lambda w, i, n: w)  # of a split at the merge
    out = staticmethod(lambda o, c: o)
    lse_of = staticmethod(lambda l, c: l)
    rows = staticmethod(lambda o, c: o)       # where rows go
    pages = staticmethod(lambda t, b, c: t)
    length = staticmethod(lambda n, b, c: n)
    group = staticmethod(lambda kv, g: kv.repeat_interleave(g, 0))
    gather = staticmethod(lambda pool, t, n, which: pool[t.long()].flatten(0, 1)[:n])
    starts = staticmethod(lambda cu, b: (int(cu[b]), int(cu[b + 1])))
    def __init__(self, **kw): self.__dict__.update(kw)

def part(q, k, v, limit, key0, o, c, dt):
    H, M, D = q.shape
    m = torch.full((H, M), -math.inf); l = torch.zeros(H, M); acc = torch.zeros(H, M, v.shape[-1])
    starts = list(range(0, k.shape[1], o.block))[:: o.order]
    sc = c["scale"] / math.log(2)
    top = None
    for i, a in enumerate(starts):
        kb, vb = k[:, a:a + o.block], v[:, a:a + o.block]
        s = (q @ kb.transpose(1, 2)) * sc
        s = o.score(s, key0 + a, limit, c)
        hide = (torch.arange(kb.shape[1]) + key0 + a)[None, :] >= limit[:, None]
        s = s.masked_fill(hide, -math.inf)
        t = s.amax(-1)
        new = torch.maximum(m, t)
        if o.lazy: new = torch.where((t <= m + o.lazy) & (m > -math.inf), m, new)
        base = torch.where(new == -math.inf, torch.zeros(()), new)
        al = torch.exp2(m - base) if i or True else 0
        p = (o.exp2 or torch.exp2)(s - base[..., None])
        p = o.prob(p, i, c)
        pr = p.to(o.pdt or dt).float() if o.pdt != "none" else p
        l = l * o.alpha_l(al, i) + (pr if o.rounded_l else p).sum(-1)
        acc = o.acc(acc * o.alpha(al, i)[..., None] + o.pv(pr @ vb, pr, vb))
        m = new
    return m, l, acc

def core(q, k, v, limit, o, c, dt):
    """q [H,M,D], k, v [Hkv,N,D] fp32, limit [M] -> out [H,M,D], lse [H,M] (natural)."""
    H, g = q.shape[0], q.shape[0] // k.shape[0]
    q, k, v = o.q(q, c), o.k(k, c), o.v(v, c)
    k, v = o.group(k, g), o.group(v, g)
    limit = o.seen(limit, k.shape[1], c)
    N = k.shape[1]
    step = o.split or max(N, 1)
    parts = [part(q, k[:, a:a + step], v[:, a:a + step], limit, a, o, c, dt) for a in range(0, max(N, 1), step)]
    m = torch.stack([x[0] for x in parts]).amax(0)
    base = torch.where(m == -math.inf, torch.zeros(()), m)
    l, acc = torch.zeros_like(m), 0
    for i, (pm, pl, pa) in enumerate(parts):
        w = o.weight(torch.exp2(pm - base), i, len(parts))
        if o.partdt:
            pa = (pa / pl.clamp_min(1e-30)[..., None]).to(o.partdt).float() * pl[..., None]
        l = l + w * pl; acc = acc + w[..., None] * pa
    out = torch.where(l[..., None] > 0, acc / l[..., None], torch.zeros(()))
    lse = (base + torch.log2(l)) * math.log(2)
    return o.rows(o.out(out, c), c), o.lse_of(lse, c)

def limits(M, N, causal):
    return (torch.arange(M) + N - M + 1).clamp(0, N) if causal else torch.full((M,), N)

def wrap(layout, o, causal, two=False):
    def ret(out, lse):
        if not two: return out
        return out, lse
    def bhsd(q, k, v):
        B, H, M, D = q.shape; res = torch.zeros_like(q); ls = torch.zeros(B, H, M)
        for b in range(B):
            c = dict(b=b, B=B, scale=D ** -0.5, causal=causal, lens=[k.shape[2]] * B, M=M)
            x, ls[b] = core(q[b].float(), k[b].float(), v[b].float(), limits(M, k.shape[2], causal), o, c, q.dtype)
            res[b] = x.to(q.dtype)
        return ret(res, ls)
    def ragged(q, k, v, cu_q, cu_k):
        res = torch.zeros_like(q); ls = torch.full(q.shape[:2], -math.inf); B = len(cu_q) - 1
        for b in range(B):
            (a, e), (ka, ke) = (int(cu_q[b]), int(cu_q[b + 1])), o.starts(cu_k, b)
            if e == a: continue
            c = dict(b=b, B=B, scale=q.shape[-1] ** -0.5, causal=causal, lens=cu_k.diff().tolist(), M=e - a)
            x, L = core(*(y.float().transpose(0, 1) for y in (q[a:e], k[ka:ke], v[ka:ke])), limits(e - a, ke - ka, causal), o, c, q.dtype)
            res[a:e] = x.transpose(0, 1).to(q.dtype); ls[a:e] = L.T
        return ret(res, ls)
    def paged(q, kp, vp, table, lens, cu=None):
        if cu is None: cu = torch.arange(len(lens) + 1)
        res = torch.zeros_like(q); ls = torch.full(q.shape[:2], -math.inf); B, P = len(lens), kp.shape[1]
        for b in range(B):
            a, e = int(cu[b]), int(cu[b + 1])
            if e == a: continue
            c = dict(b=b, B=B, scale=q.shape[-1] ** -0.5, causal=causal, lens=lens.tolist(), M=e - a, page=P)
            n = o.length(int(lens[b]), b, c)
            t = o.pages(table, b, c)[b][:(n + P - 1) // P]
            k, v = o.gather(kp, t, n, "k"), o.gather(vp, t, n, "v")
            x, L = core(q[a:e].float().transpose(0, 1), k.float().transpose(0, 1), v.float().transpose(0, 1), limits(e - a, k.shape[0], causal), o, c, q.dtype)
            res[a:e] = x.transpose(0, 1).to(q.dtype); ls[a:e] = L.T
        return ret(res, ls)
    def mla(qn, qp, cp, pp, table, lens):
        res = torch.zeros_like(qn); ls = torch.full(qn.shape[:2], -math.inf); B, P = len(lens), cp.shape[1]
        for b in range(B):
            c = dict(b=b, B=B, scale=192 ** -0.5, causal=False, lens=lens.tolist(), M=1, page=P)
            n = o.length(int(lens[b]), b, c); t = o.pages(table, b, c)[b][:(n + P - 1) // P]
            ckv, pe = o.gather(cp, t, n, "k").float(), o.gather(pp, t, n, "v").float()
            q = torch.cat([qn[b], qp[b]], -1).float()[:, None]
            x, L = core(q, torch.cat([ckv, pe], -1)[None], ckv[None], torch.tensor([n]), o, c, qn.dtype)
            res[b] = x[:, 0].to(qn.dtype); ls[b] = L[:, 0]
        return ret(res, ls)
    return {"bhsd": bhsd, "ragged": ragged, "paged_decode": paged, "paged_prefill": paged, "mla": mla}[layout]

def add(name, layout, dtype, classes, words, place=None, causal=False, two=False, **kw):
    CASES.append(Case(name, layout, dtype, causal, lambda: wrap(layout, O(**kw), causal, two), classes, place or {}, words))

def at(x, i, f, dim=0):
    x = x.clone()
    if i < x.shape[dim]: x.select(dim, i).copy_(f(x.select(dim, i).clone()))
    return x
def chan(x, a, b, f):
    x = x.clone(); x[..., a:b] = f(x[..., a:b]); return x
BF, HF = torch.bfloat16, torch.float16
# nondeterministic
def atomic(w, i, n): return w * (1 + 2e-3 * torch.rand(()))
def shuffled(acc): return acc + acc.abs() * 1e-3 * torch.randn(acc.shape)
def sometimes(o, c): return chan(o, 0, 8, torch.zeros_like) if torch.rand(()) < .4 else o
add("nd-atomic-weight", "paged_decode", "fp16", (NONDETERMINISTIC,), "Split weights race with the write of the global maximum.", split=64, weight=atomic)
add("nd-acc", "bhsd", "bf16", (NONDETERMINISTIC,), "Atomic adds of partial outputs in arbitrary order, rounded coarsely.", acc=shuffled)
add("nd-late-store", "paged_prefill", "fp16", (NONDETERMINISTIC,), "Missing barrier: the first eight channels are sometimes not there.", {"channels": (0, 8)}, out=sometimes)
# batch dependent
add("b-split-len", "paged_decode", "bf16", (BATCH,), "The first block's P is 1/16 too large when any request is longer than 128 keys.", prob=lambda p, i, c: p.to(BF).float() * (1 + 2**-4) if max(c["lens"]) > 128 and i == 0 else p)
add("b-maxlen-scale", "ragged", "fp16", (BATCH,), "The scale shrinks with the longest request of the batch (log-n scaling from the wrong length).", score=lambda s, a, l, c: s * (math.log(max(max(c["lens"]), 2)) / math.log(max(c["lens"][c["b"]], 2))))
add("b-plan-min", "paged_prefill", "fp16", (BATCH,), "Lengths past the first request's length rounded up to 64 are cut, as by a plan of request 0.", length=lambda n, b, c: min(n, max(64, -(-c["lens"][0] // 64) * 64)))
add("b-size", "mla", "bf16", (BATCH,), "In batches above four, the output is scaled by 1 + 2^-6.", out=lambda o, c: o * (1 + 2**-6) if c["B"] > 4 else o)
# memory
def tail(pool, t, n, w): return pool[t.long()].flatten(0, 1)
add("mem-page-tail", "paged_decode", "fp16", (MEMORY,), "The whole last page is read, past the request's length.", gather=tail)
add("mem-v-nan", "paged_decode", "bf16", (MEMORY,), "V past the length meets a weight of zero: a NaN of the unused slots spreads.", pv=lambda x, p, v: x, gather=tail, seen=lambda l, n, c: l.clamp_max(c["lens"][c["b"]]))
add("mem-page0", "paged_prefill", "bf16", (MEMORY,), "Requests whose length fills the last page take one key of page 0 besides.", {"requests": "lengths that are multiples of the page"}, gather=lambda pool, t, n, w: torch.cat([pool[t.long()].flatten(0, 1)[:n], pool[0, :1]]) if n and n % pool.shape[1] == 0 else pool[t.long()].flatten(0, 1)[:n])
add("mem-neighbour", "ragged", "bf16", (MEMORY, MASK), "The last key of a ragged request is read one past its end: the next request's first.", starts=lambda cu, b: (int(cu[b]), min(int(cu[b + 1]) + 1, int(cu[-1]))))
# index maps
add("q-head-swap", "bhsd", "fp16", (INDEX_Q,), "Heads 1 and 0 exchange their queries at the load.", {"q_heads": [0, 1]}, q=lambda q, c: q[[1, 0, *range(2, len(q))]] if len(q) > 1 else q)
add("q-channels", "paged_decode", "bf16", (INDEX_Q,), "A swizzle of Q's load swaps channels 16..24 and 24..32.", {"channels": (16, 32)}, q=lambda q, c: torch.cat([q[..., :16], q[..., 24:32], q[..., 16:24], q[..., 32:]], -1))
add("q-row-clamp", "paged_prefill", "fp16", (INDEX_Q,), "Rows past 16 read the query of row 15.", {"rows": "from 16"}, q=lambda q, c: q[:, torch.arange(q.shape[1]).clamp_max(15)])
add("k-gqa-mod", "bhsd", "bf16", (INDEX_K,), "K's head is the query head modulo the KV heads.", k=same, causal=True, score=lambda s, a, l, c: s, group=None)
add("k-slot-dup", "paged_decode", "fp16", (INDEX_K,), "Slot 5 of each 16 reads the key of slot 4.", {"slots": [5]}, k=lambda k, c: k[:, torch.tensor([i - (i % 16 == 5) for i in range(k.shape[1])], dtype=torch.long)])
add("k-req", "paged_prefill", "bf16", (INDEX_K,), "Keys of page index 2 are those of page index 1.", {"pages": [2]}, gather=lambda pool, t, n, w: pool[(torch.cat([t[:2], t[1:2], t[3:]]) if w == "k" and len(t) > 2 else t).long()].flatten(0, 1)[:n])
add("k-chan", "mla", "fp16", (INDEX_K,), "The rotary channels of K are read in interleaved order.", {"channels": (512, 576)}, k=lambda k, c: torch.cat([k[..., :512], k[..., 512::2], k[..., 513::2]], -1))
add("v-shift", "bhsd", "fp16", (INDEX_V, INDEX_K), "Values of keys 64 to 80 are one slot late.", {"keys": (64, 80)}, v=lambda v, c: torch.cat([v[:, :64], v[:, 64:80].roll(1, 1), v[:, 80:]], 1))
add("v-head", "paged_decode", "bf16", (INDEX_V,), "The last KV head's values are those of head 0.", {"kv_heads": [-1]}, v=lambda v, c: torch.cat([v[:-1], v[:1]]))
add("v-rev", "ragged", "fp16", (INDEX_V, INDEX_K), "Pairs of values are exchanged, as by a transposed fragment.", v=lambda v, c: v[:, torch.tensor([min(i ^ 1, v.shape[1] - 1) for i in range(v.shape[1])], dtype=torch.long)])
add("o-chan", "paged_decode", "fp16", (INDEX_OUT, INDEX_V), "Output channels 32..40 and 40..48 are exchanged at the store.", {"channels": (32, 48)}, out=lambda o, c: torch.cat([o[..., :32], o[..., 40:48], o[..., 32:40], o[..., 48:]], -1))
add("o-rows", "ragged", "bf16", (INDEX_OUT, INDEX_Q), "Rows 8 and 9 of a request are stored in each other's place.", {"rows": [8, 9]}, out=lambda o, c: o[:, [*range(8), 9, 8, *range(10, o.shape[1])]] if o.shape[1] > 9 else o)
add("o-heads", "mla", "bf16", (INDEX_OUT, INDEX_Q), "Heads are stored in reversed order.", out=lambda o, c: o.flip(0))
# mask
add("m-topleft", "bhsd", "bf16", (MASK,), "Causal mask aligned to the start (flash-attn before 2.1).", causal=True, seen=lambda l, n, c: torch.arange(1, len(l) + 1).clamp_max(n))
add("m-late", "ragged", "fp16", (MASK,), "A causal row sees one key more.", causal=True, seen=lambda l, n, c: (l + 1).clamp_max(n))
add("m-window", "paged_decode", "bf16", (MASK,), "A stray sliding window hides keys older than 256.", score=lambda s, a, l, c: s.masked_fill((torch.arange(s.shape[-1]) + a)[None] < l[:, None] - 256, -math.inf))
add("m-block", "paged_prefill", "fp16", (MASK,), "The diagonal block is masked as a whole for the rows of a half tile.", causal=True, seen=lambda l, n, c: torch.where(torch.arange(len(l)) % 16 < 8, l, l - 1).clamp_min(1))
# scores
add("s-cap", "bhsd", "fp16", (SCORES,), "A logits soft cap of 8 is left on.", score=lambda s, a, l, c: 8 * torch.tanh(s / 8))
add("s-scale576", "mla", "fp16", (SCORES,), "The scale is of 576 channels and not of 192.", score=lambda s, a, l, c: s * (192 / 576) ** .5)
add("s-head-slope", "paged_decode", "bf16", (SCORES,), "An ALiBi slope of 2^-8 stays on for head 3.", {"q_heads": [3]}, score=lambda s, a, l, c: at(s, 3, lambda x: x + (torch.arange(x.shape[-1]) + a) * 2**-8))
add("s-16bit", "ragged", "bf16", (SCORES,), "Block 1 of the scores omits the scale.", {"keys": (32, 64)}, score=lambda s, a, l, c: s / c["scale"] if a == 32 else s)
# weights
add("w-no-rescale-l", "paged_decode", "fp16", (WEIGHTS,), "l is not rescaled when the maximum moves.", alpha_l=lambda a, i: torch.where(a > 0, torch.ones(()), a))
add("w-no-rescale-o", "bhsd", "bf16", (WEIGHTS,), "O is not rescaled when the maximum moves at odd blocks.", alpha=lambda a, i: torch.where(a > 0, torch.ones(()), a) if i % 2 else a)
add("w-sink", "ragged", "fp16", (WEIGHTS,), "l is rescaled by half too much at the second block.", prob=lambda p, i, c: p, alpha_l=lambda a, i: a + (.5 if i == 1 else 0))
add("w-floor", "mla", "bf16", (WEIGHTS,), "Weights below 2^-6 are flushed to zero.", prob=lambda p, i, c: torch.where(p < 2**-6, torch.zeros(()), p))
# merge
add("mg-equal", "paged_decode", "bf16", (MERGE,), "Splits are merged with equal weights.", split=64, weight=lambda w, i, n: torch.where(w > 0, torch.ones(()), w))
add("mg-last", "paged_prefill", "fp16", (MERGE,), "The last split is not merged.", {"split": "the last"}, split=64, weight=lambda w, i, n: w * 0 if n > 1 and i == n - 1 else w)
add("mg-base", "mla", "fp16", (MERGE,), "Splits' weights are e^x of base-2 maxima.", split=64, weight=lambda w, i, n: w ** 1.442695)
# values
add("pv-drop", "bhsd", "fp16", (VALUES,), "The second key of a block's product is left out of the value sum alone.", {"slots": [1]}, pv=lambda x, p, v: x - p[..., 1:2] * v[..., 1:2, :] if v.shape[-2] > 1 else x)
add("pv-zero", "paged_decode", "fp16", (VALUES, STORE), "The value sum of channels 48..64 counts each product twice.", {"channels": (48, 64)}, pv=lambda x, p, v: chan(x, 48, 64, lambda y: y * 2))
add("pv-tail", "ragged", "bf16", (VALUES,), "The last key of a partial block is read as zeros in V.", pv=lambda x, p, v: x - p[..., -1:] * v[..., -1:, :] if v.shape[-2] < 32 else x)
# store
add("st-clip", "bhsd", "bf16", (STORE,), "Outputs are clipped to [-1, 1].", out=lambda o, c: o.clamp(-1, 1))
add("st-half", "paged_decode", "bf16", (STORE,), "The last query head's row is left out and stays zero.", {"q_heads": [-1]}, out=lambda o, c: at(o, len(o) - 1, torch.zeros_like))
add("st-scale", "paged_prefill", "bf16", (STORE,), "A v_scale of 1.125 is applied at the store.", out=lambda o, c: o * 1.125)
# lse
add("lse-mixed", "bhsd", "fp16", (LSE,), "The LSE is multiplied by 1.02.", two=True, lse_of=lambda l, c: l * 1.02)
add("lse-nolen", "paged_decode", "fp16", (LSE,), "The LSE of head 0 lacks log l's last factor of two.", {"q_heads": [0]}, two=True, lse_of=lambda l, c: at(l, 0, lambda x: x - math.log(2)))
add("lse-scale", "ragged", "bf16", (LSE,), "The LSE is multiplied by the softmax scale.", two=True, lse_of=lambda l, c: l * c["scale"])
# less exact
add("le-acc16", "bhsd", "bf16", (LESS_EXACT,), "O is accumulated in bf16.", block=16, acc=lambda a: a.to(BF).float())
add("le-p8", "paged_decode", "fp16", (LESS_EXACT,), "P is rounded to fp8 e4m3.", pdt=torch.float8_e4m3fn)
add("le-s16", "ragged", "bf16", (LESS_EXACT,), "Scores are rounded to bf16 before the softmax.", score=lambda s, a, l, c: s.to(BF).float())
for i, x in enumerate(CASES):  # the modulo map needs its own grouping
    if x.name == "k-gqa-mod":
        def mod(kv, g):
            mod.n ^= 1
            return kv.repeat(g, 1, 1) if mod.n else kv.repeat_interleave(g, 0)
        mod.n = 0
        CASES[i] = Case(x.name, x.layout, x.dtype, True, lambda: wrap("bhsd", O(group=mod), True), x.classes, {}, x.words)

# ---- right callables
def cubic(x):
    i = torch.floor(x).clamp_min(-126); f = (x - i)
    p = 1 + f * (.69583 + f * (.22606 + f * .078025))
    return torch.where(x < -125, torch.zeros(()), p * torch.exp2(i))
RIGHT = dict(
    plain={}, block16=dict(block=16), block64=dict(block=64), block7=dict(block=7), split64=dict(split=64), split96=dict(split=96, block=32),
    p32=dict(pdt="none"), pbf16=dict(pdt=BF, rounded_l=True), roundl=dict(rounded_l=True), lazy=dict(lazy=8.0), poly=dict(exp2=cubic),
    descending=dict(order=-1), part16=dict(split=128, partdt="dt"), log2lse=dict(lse_of=lambda l, c: l / math.log(2)))
k = 0
for nm, kw in RIGHT.items():
    for lay in (("paged_decode", "bhsd"), ("ragged", "paged_prefill"), ("mla", "paged_decode"))[k % 3]:
        d = "bf16" if k % 2 else "fp16"
        kw2 = {a: (DT[d] if b == "dt" else b) for a, b in kw.items()}
        add(f"ok-{nm}-{lay}", lay, d, (), f"Right: {nm}.", causal=lay in ("ragged", "paged_prefill"), two=nm == "log2lse", **kw2)
    k += 1
def sdpa(causal):
    def f(q, k, v):
        g = q.shape[1] // k.shape[1]; M, N = q.shape[2], k.shape[2]
        mask = (torch.arange(N)[None] <= torch.arange(M)[:, None] + N - M) if causal else None
        return torch.nn.functional.scaled_dot_product_attention(q, k.repeat_interleave(g, 1), v.repeat_interleave(g, 1), attn_mask=mask)
    return f
for d in ("fp16", "bf16"):
    CASES.append(Case(f"ok-sdpa-{d}", "bhsd", d, False, lambda: sdpa(False), (), {}, "Right: torch's own."))

# ---- the lab's kernels
def kernel_fn(spec, layout, causal, kps=None, two=True):
    from labkernels import ops
    from labkernels.kernels.caches.paged import PagedKV
    from labkernels.kernels.caches.ragged import RaggedKV
    how = {"keys_per_split": kps} if kps else {}
    def fin(r): return (r.out, r.lse2) if two else r.out
    def dec(q, kp, vp, t, n):
        return fin(ops.decode(q, PagedKV(kp, vp, t, n), kernel=spec, out=torch.zeros_like(q), **how))
    def rag(q, k, v, cq, ck):
        return fin(ops.prefill(q, RaggedKV(k, v, ck), cq, causal=causal, kernel=spec, **how))
    def pag(q, kp, vp, t, n, cq):
        return fin(ops.prefill(q, PagedKV(kp, vp, t, n), cq, causal=causal, kernel=spec, **how))
    return {"paged_decode": dec, "ragged": rag, "paged_prefill": pag}[layout]

def mutant(name, kernel, layout, dtype, classes, file, pat, by, words, place=None, causal=False, kps=None):
    def make():
        from labkernels.measure.mutants.mutant import Edit, Mutant
        return kernel_fn(Mutant(name, words, "", {kernel: Edit(file, pat, by)}).spec(kernel), layout, causal, kps)
    CASES.append(Case(name, layout, dtype, causal, make, classes, place or {}, words))

PG, SM, SP, RW, KN = "decode/problem.cuh", "lab/attention/online_softmax.cuh", "lab/attention/split_kv.cuh", "packed_gqa/rows.cuh", "kernel.cuh"
F, X, N8, PF, PX = "decode_fma", "decode_mma", "decode_mma_n8", "prefill_fma", "prefill_mma"
from labkernels.measure.mutants.mutant import KERNEL as KN  # noqa: E402,F811
# (name, kernels, classes, file, pattern, by, words, place, keys per split)
DEC = [
 ("table-row", (F, X), (INDEX_K, INDEX_V), PG, r"static_cast<i64>\(w\.batch\) \* p\.page_table_stride", "static_cast<i64>(w.batch / 2 * 2) * p.page_table_stride", "Odd requests follow the page table of the one before.", {"requests": "odd"}, None),
 ("v-head-half", (F, N8), (INDEX_V,), PG, r"(?<=p\.v_pool\) \+ )w\.kv_head", "(w.kv_head / 2)", "V's KV head is halved.", {"kv_heads": "from 1"}, None),
 ("k-head-wrap", (X, N8), (INDEX_K,), PG, r"(?<=p\.k_pool\) \+ )w\.kv_head", "(w.kv_head + 1 < p.kv_heads ? w.kv_head : 0)", "The last KV head reads the keys of head 0.", {"kv_heads": [-1]}, None),
 ("slot-xor", (F, X), (INDEX_K, INDEX_V), PG, r"\(key - slot \* page_size\)", "(slot == 1 ? 0 : key - slot * page_size)", "All keys of page 1 are its first.", {"pages": [1]}, None),
 ("split-edge", (X, N8), (MASK,), PG, r"end < kv_len \? end :", "end < kv_len ? end - 1 :", "The last key of every full split is dropped.", {"split": "all but the last"}, 64),
 ("merge-first16", (F, N8), (MERGE,), SP, r"first < work\.live_splits; first \+= batch", "first < work.live_splits && first < batch; first += batch", "Only the first 16 splits are merged.", {"split": "from 16"}, 32),
 ("merge-last-of-batch", (X,), (MERGE,), SP, r"i < batch; \+\+i\) merge\(l", "i < batch - 13; ++i) merge(l", "Only the first three splits of a batch are merged.", {"split": "from 3"}, 32),
 ("merge-unweighted", (F, N8), (MERGE,), SP, r"weight = exp2<P>\(part_m - m\)", "weight = part_m > -1e30f ? 1.f : 0.f", "Splits are merged unweighted.", None, 64),
 ("warps-unweighted", (X, N8), (MERGE,), SP, r"exp2<P>\(states\.m\[w\]\[row\] - m\)", "(states.l[w][row] == 0.f ? 0.f : 1.f)", "Warps' states are merged unweighted.", None, None),
 ("lse-minus", (F, X), (LSE,), SM, r"m \+ log2_poly\(l\)", "m - log2_poly(l)", "log l is subtracted.", None, None),
 ("lse-max", (N8,), (LSE,), SM, r"m \+ log2_poly\(l\)", "m", "The LSE is the maximum alone.", None, None),
 ("lse-empty", (F,), (LSE,), SM, r"l == 0\.f \? minus_infinity\(\) : m", "l == 0.f ? 0.f : m", "The LSE of an empty request is 0.", {"requests": "empty"}, None),
 ("store-last-channel", (X, N8), (STORE,), SP, r"l == 0\.f \? 0\.f : div_rn\(o\.v\[c\]", "l == 0.f || dim + c == D - 1 ? 0.f : div_rn(o.v[c]", "The last channel is not stored.", {"channels": "last"}, None),
 ("store-swap", (F, X), (INDEX_OUT, INDEX_V), SP, r"head \* D \+ dim, o\);", "head * D + (dim ^ 4), o);", "Neighbouring quads of channels exchange places.", None, None),
 ("l-unscaled", (F, X), (WEIGHTS,), SM, r"l = l \* rescale;", "", "l is not rescaled.", None, None),
 ("sharers-short", (N8,), (WEIGHTS,), SM, r"i < 5; \+\+i\)", "i < 4; ++i)", "A reduction over lanes misses its last step.", None, None),
 ("scale-e", (F, X, N8), (SCORES,), KN, r"p\.scale_log2", "p.scale_log2 * 0.6931472f", "The scale lacks log2 e.", None, None),
 ("v-lanes", (X,), (INDEX_V, INDEX_K), KN, r"v_tile, b \* 16 \+ \(lane & 15\)", "v_tile, b * 16 + (lane & 15 ^ 1)", "Pairs of values are exchanged.", None, None),
 ("q-rows", (X,), (INDEX_Q, INDEX_OUT), KN, r"smem\.q, lane & 15", "smem.q, (lane & 15) ^ 1", "Pairs of query rows are exchanged.", None, None),
 ("q-chunk", (X,), (INDEX_Q,), KN, r"step \* 2 \+ \(lane >> 4\)", "step * 2", "The second chunk of Q is the first.", None, None),
 ("k-frag", (X,), (INDEX_K,), KN, r"k\[2\], k\[3\]", "k[0], k[3]", "A register of K is taken from the other octet.", None, None),
 ("v-frag", (X,), (INDEX_V,), KN, r"v\[2 \* h\], v\[2 \* h \+ 1\]", "v[2 * h], v[2 * h]", "The second half of the keys meets the first's values.", None, None),
]
PRE = [
 ("top-left", (PF, PX), (MASK,), RW, r"b\.past = b\.kv_len - n;", "b.past = 0;", "Causal mask aligned to the start.", True),
 ("diagonal", (PF, PX), (MASK,), RW, r"(?<=first_row \+ row\)) \+ 1;", ";", "A row does not see its own key.", True),
 ("packed-limit", (PF, PX), (MASK,), RW, r"b\.past \+ token_of\(p, b\.first_row \+ row\)", "b.past + b.first_row + row", "The causal limit counts packed rows as tokens.", True),
 ("out-heads", (PF, PX), (INDEX_OUT, INDEX_Q), RW, r"b\.kv_head \* p\.group \+ \(packed - token \* p\.group\)", "b.kv_head * p.group + (p.group - 1 - (packed - token * p.group))", "Heads of a group are stored in reversed order.", False),
 ("q-group", (PX,), (INDEX_Q,), RW, r"\(packed - token \* p\.group\) \* p\.q_stride_head", "0 * p.q_stride_head", "All heads of a group use the first's query.", False),
 ("q-group", (PF,), (INDEX_Q,), KN, r"\(packed - token \* p\.group\) \* p\.q_stride_head", "0 * p.q_stride_head", "All heads of a group use the first's query.", False),
 ("v-head0", (PF,), (INDEX_V,), KN, r"b\.kv_head \* p\.v_stride_head", "0 * p.v_stride_head", "V is that of KV head 0.", False),
 ("mask-skip", (PF,), (MASK,), KN, r"key \+ C::keys > least\(seen_by_all", "key > least(seen_by_all", "The first diagonal tile is not masked.", True),
]
for nm, ks, cl, file, pat, by, words, place, kps in DEC:
    for j, kn in enumerate(ks):
        mutant(f"{nm}-{kn}", kn, "paged_decode", "bf16" if j else "fp16", cl, file, pat, by, words, place, False, kps)
for nm, ks, cl, file, pat, by, words, ca in PRE:
    for j, kn in enumerate(ks):
        mutant(f"{nm}-{kn}", kn, "ragged", "bf16" if j else "fp16", cl, file, pat, by, words, None, ca)
def right_kernel(kn, lay, d, ca, kps):
    CASES.append(Case(f"ok-{kn}-{lay}-{d}-{kps}-{ca}", lay, d, ca, lambda: kernel_fn(kn, lay, ca, kps), (), {}, "Right: the lab's kernel."))
for kn in (F, X, N8):
    for d, kps in (("fp16", 64), ("bf16", None)): right_kernel(kn, "paged_decode", d, False, kps)
for kn in (PF, PX):
    for d, lay, ca in (("fp16", "ragged", False), ("bf16", "ragged", True), ("bf16", "paged_prefill", True)): right_kernel(kn, lay, d, ca, None)
