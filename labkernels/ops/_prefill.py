"""The verbs `prefill` and `varlen_qkvpacked`: many query tokens a request, over any layout."""

import importlib

import torch

from labkernels.hardware import Gpu
from labkernels.kernels.paged_kv import MAX_KEYS, PagedKV, require_device, require_rows
from labkernels.kernels.prefill_plan import Lengths
from labkernels.kernels.prefill_step import PrefillRequest
from labkernels.kernels.ragged_kv import RaggedKV, read_lengths, require_cu_seqlens
from labkernels.kernels.spec import MANY_ROWS, Instance, KernelSpec, NumericPolicy, head_dim_v
from labkernels.kernels.step import Step
from labkernels.ops import _arguments as arguments
from labkernels.ops._arguments import Result

TOKENS = tuple(2**i for i in range(MANY_ROWS.bit_length()))  # of the longest request


def prefill(
    q: torch.Tensor,
    kv: RaggedKV | PagedKV,
    cu_seqlens_q: torch.Tensor,
    *,
    causal: bool = False,
    kernel: str | None = None,
    tile: str | None = None,
    splits: int | None = None,
    keys_per_split: int | None = None,
    policy: NumericPolicy | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    target: str | None = None,
    checks: bool = False,
) -> Result:
    """Attention of many query tokens a request over its keys, one request behind the other.

    Shapes: q [total, q_heads, head_dim], q_heads a multiple of the KV heads; cu_seqlens_q
    [batch + 1] int32, from 0 to total; out [total, q_heads, head_dim_v], lse2 [total, q_heads]
    fp32. A causal mask is aligned to the end: query i of n with L keys sees keys 0 to L - n + i.
    A query without keys gives out = 0, lse2 = -inf.
    kernel: without a name the GPU's facts choose, and result.plan.why says how.
    Units: scale multiplies q k (default 1 / sqrt(head_dim)); lse2 is in base 2.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.
    """
    step = prefill_step(
        q,
        kv,
        cu_seqlens_q,
        causal=causal,
        kernel=kernel,
        tile=tile,
        splits=splits,
        keys_per_split=keys_per_split,
        policy=policy,
        scale=scale,
        out=out,
        lse2=lse2,
        target=target,
        checks=checks,
    )
    if isinstance(kv, PagedKV):
        kv.check_contents()
    step.run()
    return Result(step.out, step.lse2, step.plan)


def varlen_qkvpacked(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, *, causal: bool = False, **options
) -> Result:
    """Attention of tokens over their own request, from Q, K and V side by side.

    Shapes: qkv [total, 3, heads, head_dim], cu_seqlens [batch + 1] int32. Options as `prefill`.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.
    """
    if qkv.dim() != 4 or qkv.shape[1] != 3:
        raise ValueError(f"qkv.shape = {tuple(qkv.shape)}, allowed: [total, 3, heads, head_dim]")
    q, k, v = qkv.unbind(1)
    return prefill(q, RaggedKV(k, v, cu_seqlens), cu_seqlens, causal=causal, **options)


def prefill_step(
    q: torch.Tensor,
    kv: RaggedKV | PagedKV,
    cu_seqlens_q: torch.Tensor,
    *,
    causal: bool = False,
    kernel: str | None = None,
    tile: str | None = None,
    splits: int | None = None,
    keys_per_split: int | None = None,
    policy: NumericPolicy | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    target: str | None = None,
    checks: bool = False,
) -> Step:
    """Prepare a prefill that runs again and again, as `prefill` but without reading page numbers.

    The lengths are read here, once, and must stay; page numbers may change between runs, and
    keeping them in range is then the caller's part (`PagedKV.check_contents`).
    Raises: ValueError naming the argument, its value and what is allowed.
    """
    _check_query(q, kv, cu_seqlens_q)
    gpu = arguments.target_gpu(q.device, target)
    arguments.check_cut(splits, keys_per_split)
    scale = arguments.scale_of(scale, q.shape[2])
    lengths = Lengths(read_lengths("cu_seqlens_q", cu_seqlens_q, len(q)), kv.read_lengths())
    tokens = max(1, int(lengths.q.max()))
    spec, why = _chosen(kernel, q, kv, gpu, tokens)
    instance = _instance(spec, q, kv, gpu, tile, policy, tokens)
    _check_value_channels(kv)
    shape, dtype = (*q.shape[:2], kv.head_dim_v), arguments.out_dtype(q, instance.policy)
    fixed_splits = keys_per_split is not None or splits == 1
    request = PrefillRequest(
        spec=spec,
        why=why,
        instance=instance,
        q=q,
        kv=kv,
        cu_seqlens_q=cu_seqlens_q,
        lengths=lengths,
        causal=causal,
        scale=scale,
        splits=splits,
        keys_per_split=keys_per_split,
        batch_invariant=fixed_splits
        and (kernel is not None or _chooses_one_kernel(q, kv, gpu))
        and (tile is not None or _prefers_one_tile(spec, q, kv, gpu, policy)),
        out=arguments.output("out", out, shape, dtype, q.device),
        lse2=arguments.output("lse2", lse2, q.shape[:2], torch.float32, q.device),
        gpu=gpu,
        checks=checks,
    )
    return importlib.import_module(spec.runner).prepare(request)


def _instance(
    spec: KernelSpec,
    q: torch.Tensor,
    kv: RaggedKV | PagedKV,
    gpu: Gpu,
    tile: str | None,
    policy: NumericPolicy | None,
    tokens: int,
) -> Instance:
    return arguments.instance_of(
        spec,
        q,
        group=q.shape[1] // kv.kv_heads,
        tokens=tokens,
        gpu=gpu,
        tile=tile,
        policy=policy,
        kv=kv.layout,
    )


def _chosen(
    kernel: str | None, q: torch.Tensor, kv: RaggedKV | PagedKV, gpu: Gpu, tokens: int
) -> tuple[KernelSpec, str]:
    """The kernel, and why it; unless it is named, not one that says another is faster."""

    def declines(spec: KernelSpec) -> str | None:
        reason = spec.declines(q, kv)
        return spec.yields(kv) if reason is None and kernel is None else reason

    rows = q.shape[1] // kv.kv_heads * tokens
    return arguments.chosen_kernel(kernel, "prefill", gpu, declines, rows=rows)


def _chooses_one_kernel(q: torch.Tensor, kv: RaggedKV | PagedKV, gpu: Gpu) -> bool:
    """Whether the chosen kernel is the same however long the longest request is."""
    return len({_chosen(None, q, kv, gpu, n)[0].name for n in TOKENS}) == 1


def _prefers_one_tile(
    spec: KernelSpec, q: torch.Tensor, kv: RaggedKV | PagedKV, gpu: Gpu, policy
) -> bool:
    """Whether the preferred tile is the same however long the longest request is."""
    return len({_instance(spec, q, kv, gpu, None, policy, n).tile for n in TOKENS}) == 1


def _check_query(q: torch.Tensor, kv: RaggedKV | PagedKV, cu_seqlens_q: torch.Tensor) -> None:
    if q.dim() != 3:
        raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: [total, q_heads, head_dim]")
    if q.dtype != kv.k.dtype:
        raise ValueError(f"q.dtype = {q.dtype}, allowed: {kv.k.dtype}, as k")
    require_device("q", q, kv.k.device)
    require_rows("q", q)
    arguments.check_heads(q, kv.head_dim, kv.kv_heads)
    if q.shape[0] * q.shape[1] > MAX_KEYS:
        raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: up to {MAX_KEYS} rows of heads")
    require_cu_seqlens("cu_seqlens_q", cu_seqlens_q, kv.k.device)
    if len(cu_seqlens_q) != kv.batch + 1:
        raise ValueError(
            f"len(cu_seqlens_q) = {len(cu_seqlens_q)}, allowed: {kv.batch + 1}, the requests of kv"
            " and one more"
        )


def _check_value_channels(kv: RaggedKV | PagedKV) -> None:
    allowed = head_dim_v(kv.head_dim)
    if kv.head_dim_v != allowed:
        raise ValueError(
            f"v.shape[-1] = {kv.head_dim_v}, allowed with head_dim {kv.head_dim}: {allowed}"
        )
