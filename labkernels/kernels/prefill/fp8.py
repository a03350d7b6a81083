"""The verb `prefill_fp8`: a prefill whose Q, K and V are codes in e4m3 with scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import torch

from labkernels.cuda.workspace import blank
from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.call import Asked, Attention, Step, asked_of, keep, kept
from labkernels.kernels.kernel import MANY_ROWS
from labkernels.kernels.memory import require_apart
from labkernels.kernels.packed_gqa.call import PackedCall, PackedOptions, SplitOptions, packed_call
from labkernels.kernels.packed_gqa.schedule import Lengths
from labkernels.kernels.prefill.inputs import PrefillInputs, prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Draw

CODES = torch.float8_e4m3fn
NO_SCALES: Mapping[str, torch.Tensor | None] = {}
DIMS = "[total, q_heads, head_dim]"
NAMES, DESCALES = ("q", "cu_seqlens_q"), ("q_descale", "k_descale", "v_descale")


@dataclass(frozen=True, eq=False)
class RaggedCodes(RaggedKV):
    """K and V as in RaggedKV, but as codes in e4m3."""

    def check_tensors(self) -> None:
        """Raise ValueError unless kernels can use the shapes, strides, types and devices."""
        arguments.require_formats(self.k, self.v, "[total, kv_heads, head_dim]", dtypes=(CODES,))
        arguments.require_cu_seqlens("cu_seqlens", self.cu_seqlens, self.k.device)


class Fp8Options(PackedOptions, total=False):
    """The options of `prefill_fp8`, of which dtype is the output's: bf16 by default, or fp16."""

    dtype: torch.dtype


def inputs_of(workload: Prefill, draw: Draw) -> PrefillInputs:
    """Return a prefill's inputs whose numbers e4m3 holds, so that 16-bit kernels read the same."""
    inputs = prefill_inputs(workload, draw)
    for x in (inputs.q, inputs.kv.k, inputs.kv.v):
        x.copy_(x.to(CODES))
    return inputs


def step_of(inputs: PrefillInputs, **how) -> Step[Attention]:
    """Return the step on the codes of such inputs; how: the options of `prefill_fp8`."""
    kv = RaggedCodes(inputs.kv.k.to(CODES), inputs.kv.v.to(CODES), inputs.kv.cu_seqlens)
    w = inputs.workload
    how |= {"dtype": inputs.q.dtype, "scale": inputs.scale, "causal": w.causal}
    how |= {"q_lens": w.q_lens, "kv_lens": w.kv_lens}
    return prefill_fp8_step(inputs.q.to(CODES), kv, inputs.cu_seqlens_q, **how)


def prefill_fp8(
    q: torch.Tensor,
    kv: RaggedCodes,
    cu_seqlens_q: torch.Tensor,
    *,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    **options: Unpack[Fp8Options],
) -> Step[Attention]:
    """Compute the attention of codes in e4m3, in 8-bit products of the tensor cores.

    A query is its code times q_descale, and K and V likewise, as in FlashAttention-3.
    Shapes: q [total, q_heads, head_dim] float8_e4m3fn; cu_seqlens_q [batch + 1] int32; q_descale,
    k_descale, v_descale [batch, kv_heads] fp32, of any strides, 1 by default; they are read when
    the step runs. out [total, q_heads, head_dim_v], lse2 [total, q_heads] fp32.
    Units: scale multiplies q k (default 1 / sqrt(head_dim)); lse2 is in base 2.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.

    >>> ends = torch.tensor([0, 3, 8], dtype=torch.int32)  # requests of 3 and 5 tokens
    >>> q, k, v = (torch.randn(8, heads, 128).to(CODES) for heads in (4, 2, 2))
    >>> half = torch.tensor(0.5).expand(2, 2)  # of each request and KV head
    >>> step = prefill_fp8(q, RaggedCodes(k, v, ends), ends, causal=True, v_descale=half)
    >>> torch.equal(step.out[0, 0], v[0, 0].bfloat16() / 2)  # the first token sees itself alone
    True
    """
    given = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    step = prefill_fp8_step(q, kv, cu_seqlens_q, descales=given, **options)
    step.run()
    return step


def prefill_fp8_step(
    q: torch.Tensor,
    kv: RaggedCodes,
    cu_seqlens_q: torch.Tensor,
    *,
    descales: Mapping[str, torch.Tensor | None] = NO_SCALES,
    causal: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    q_lens: Sequence[int] | None = None,
    kv_lens: Sequence[int] | None = None,
    **options: Unpack[SplitOptions],
) -> Step[Attention]:
    """Prepare a `prefill_fp8` that can run many times with these lengths; descales come by name.

    Raises: ValueError naming the argument, its value and what is allowed.

    >>> ends = torch.tensor([0, 8], dtype=torch.int32)
    >>> q, k, v = torch.randn(3, 8, 2, 128).to(CODES)
    >>> step = prefill_fp8_step(q, RaggedCodes(k, v, ends), ends)
    >>> step.run()
    >>> step.out.dtype
    torch.bfloat16
    """
    if not isinstance(kv, RaggedCodes):
        arguments.refuse_kind("kv", kv, "RaggedCodes")
    asked, _ = asked_of("prefill_fp8_step", q, options, SplitOptions, causal=causal)
    target, scales = asked.target, {n: _descale(n, descales.get(n), kv) for n in DESCALES}
    found = ("prefill_fp8", target, dtype, *arguments.facts(q, cu_seqlens_q, names=NAMES), kv.facts)
    found += tuple(scale.stride() for scale in scales.values())
    tensors = arguments.once_per_facts(
        found, lambda: _check_tensors(q, kv, cu_seqlens_q, dtype, target)
    )
    arguments.require_place("q", q)
    if out is not None or lse2 is not None:
        read = {"q": q, "cu_seqlens_q": cu_seqlens_q, **kv.tensors, **scales}
        require_apart({"out": out, "lse2": lse2}, read)
    q_lengths = arguments.read_lengths("cu_seqlens_q", cu_seqlens_q, q.shape[0], q_lens)
    lengths = Lengths(q_lengths, kv.read_lengths(kv_lens))
    facts = (tensors, lengths.q.tobytes(), lengths.kv.tobytes())
    call = kept(facts, asked) or keep(facts, asked, _checked(q, kv, dtype, lengths, asked))
    call = call.on(
        q=q,
        kv=kv,
        cu_seqlens_q=cu_seqlens_q,
        out=arguments.output("out", out, call.out),
        lse2=arguments.output("lse2", lse2, call.lse2),
        variant_tensors=scales,
    )
    return call.choice.kernel.prepare(call)


def _checked(
    q: torch.Tensor, kv: RaggedCodes, dtype: torch.dtype, lengths: Lengths, asked: Asked
) -> PackedCall:
    """Return the checked call of these arguments without its tensors: only their facts count."""
    return packed_call(
        PackedCall,
        "prefill_fp8",
        blank(tuple(q.shape), dtype, q.device),
        lengths,
        asked,
        kv_heads=kv.kv_heads,
        most_tokens=MANY_ROWS,
        invariant_split={"splits": 1},
        head_dim=kv.head_dim,
        head_dim_v=kv.head_dim_v,
        layout="ragged",
        positive_strides=arguments.has_positive_strides(q, kv.k, kv.v),
    )


def _descale(name: str, scale: torch.Tensor | None, kv: RaggedCodes) -> torch.Tensor:
    """Return a scale of each request and KV head, checked; ones by default."""
    shape = (kv.batch, kv.kv_heads)
    if scale is None:
        return torch.ones(1, dtype=torch.float32, device=kv.k.device).expand(shape)
    arguments.require_tensor(name, scale)
    arguments.require_device(name, scale, kv.k.device)
    if (scale.dtype, tuple(scale.shape)) != (torch.float32, shape):
        found = f"{scale.dtype} {tuple(scale.shape)}"
        raise ValueError(f"{name} is {found}, allowed: torch.float32 {shape}, [batch, kv_heads]")
    return scale


def _check_tensors(
    q: torch.Tensor,
    kv: RaggedCodes,
    cu_seqlens_q: torch.Tensor,
    dtype: torch.dtype,
    target: str | None,
) -> None:
    if dtype not in arguments.WIDER:
        allowed = ", ".join(map(str, arguments.WIDER))
        raise ValueError(f"dtype = {dtype}, allowed: {allowed}")
    arguments.require_query(q, kv.k, kv.head_dim, kv.kv_heads, DIMS, (CODES,))
    arguments.target_gpu(q.device, target)
    arguments.require_cu_seqlens("cu_seqlens_q", cu_seqlens_q, kv.k.device, kv.batch, "kv")
