"""A model writes token by token: keys and values in a paged cache, attention by `decode`."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from labkernels.experiments.training import ways
from labkernels.experiments.training.model import Gpt
from labkernels.kernels.caches.paged import PagedKV, QuantizedKV
from labkernels.kernels.call import Attention, Step
from labkernels.kernels.decode.api import decode_step
from labkernels.policy import CUDA_CORES, TENSOR_CORES, NumericPolicy

PAGE = 64
# choose(logits [batch, VOCABULARY], place): the next tokens, [batch]
Choose = Callable[[torch.Tensor, int], torch.Tensor]


class Cache:
    """The keys and values of all layers, and the steps that attend to them.

    options: of `decode_step`; None for attention in fp32 by torch. alone: each request is decoded
    in a call of its own. dtype: of keys and values; those in 8 bits have a scale of 1. `attend` is
    called once for each layer, in order.
    """

    def __init__(
        self,
        model: Gpt,
        batch: int,
        options: Mapping[str, Any] | None,
        *,
        alone: bool,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        size, device = model.size, model.norm.device
        pages = -(-size.context // PAGE)
        pools = (size.layers, 2, batch, pages * PAGE, size.kv_heads, size.head_dim)
        self.pools = torch.zeros(pools, dtype=dtype, device=device)
        self.kv_len = torch.zeros(batch, dtype=torch.int32, device=device)
        q = (size.layers, batch, size.q_heads, size.head_dim)
        self.q = torch.zeros(q, dtype=torch.bfloat16, device=device)
        self.table = torch.arange(batch * pages, dtype=torch.int32, device=device).view(batch, -1)
        self.length = self._layer = 0
        self.steps: list[list[Step[Attention]]] = []
        if options is not None:
            ends = range(batch + 1) if alone else (0, batch)
            for i in range(size.layers):
                of_layer = {**options, "window_left": size.window_of(i)}
                self.steps.append(self._steps_of(i, list(ends), of_layer))

    def _steps_of(
        self, layer: int, ends: Sequence[int], options: Mapping[str, Any]
    ) -> list[Step[Attention]]:
        k, v = self.pools[layer].unflatten(2, (-1, PAGE)).flatten(1, 2)
        steps = []
        for first, end in pairwise(ends):
            of = (k, v, self.table[first:end], self.kv_len[first:end])
            one = torch.ones(k.shape[2], device=k.device)
            cache = PagedKV(*of) if k.dtype == torch.bfloat16 else QuantizedKV(*of, one, one)
            steps.append(decode_step(self.q[layer, first:end], cache, checks=False, **options))
        return steps

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None = None
    ) -> torch.Tensor:
        """Keep k and v, and return attention of the new tokens to all that were kept."""
        layer, new = self._layer, q.shape[1]
        if layer == 0:
            self.length += new
            self.kv_len.fill_(self.length)
        self._layer = (layer + 1) % len(self.q)
        kept = self.pools[layer][:, :, : self.length]
        kept[:, :, -new:] = torch.stack((k, v)).to(self.pools.dtype)
        if new > 1:  # the prompt
            return ways.WAYS["tensor cores"]()(q, k, v, window)
        if not self.steps:
            first = 0 if window is None else max(0, self.length - window - 1)
            return one_row(q.bfloat16(), *kept[:, :, first:]).to(q.dtype)
        self.q[layer] = q[:, 0]
        for step in self.steps[layer]:
            step.run()
        return torch.cat([step.out for step in self.steps[layer]])[:, None].to(q.dtype)


def one_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return attention of one token in fp32.

    Shapes: q [batch, 1, heads, head_dim]; k, v [batch, keys, KV heads, head_dim].
    """
    with torch.autocast(q.device.type, enabled=False):
        rows = q[:, 0].float().unflatten(1, (k.shape[2], -1)) * q.shape[-1] ** -0.5
        p = torch.einsum("bhgd,bkhd->bhgk", rows, k.float()).softmax(-1)
        return torch.einsum("bhgk,bkhd->bhgd", p, v.float()).flatten(1, 2)[:, None]


E4M3 = "cache in e4m3"
# How each way decodes: the options of `decode_step`, and whether each request has its own call.
DECODES: Mapping[str, tuple[Mapping[str, Any] | None, bool]] = {
    "tensor cores": ({"policy": TENSOR_CORES}, False),
    "tensor cores, alone": ({"policy": TENSOR_CORES}, True),
    "batch invariant": ({"policy": TENSOR_CORES, "batch_invariant": True}, False),
    "batch invariant, alone": ({"policy": TENSOR_CORES, "batch_invariant": True}, True),
    "rounded denominator": ({"policy": NumericPolicy(denominator="rounded")}, False),
    "P as hi + lo": ({"policy": NumericPolicy(p="input_x2")}, False),
    "CUDA cores": ({"policy": CUDA_CORES}, False),
    E4M3: ({"policy": TENSOR_CORES}, False),
    "torch fp32": (None, False),
}


@torch.no_grad()
def generated(
    model: Gpt, prompts: torch.Tensor, way: str, tokens: int, choose: Choose
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that follow prompts, and the logits that they were chosen from.

    Shapes: prompts [batch, n] -> [batch, tokens], [batch, tokens, VOCABULARY].
    """
    options, alone = DECODES[way]
    dtype, device = torch.float8_e4m3fn if way == E4M3 else torch.bfloat16, prompts.device
    cache = Cache(model, len(prompts), options, alone=alone, dtype=dtype)
    said, logits, given = [], [], prompts
    with torch.autocast(device.type, torch.bfloat16):
        for place in range(tokens):
            first = 0 if place == 0 else prompts.shape[1] + place - 1
            logits.append(model(given, cache.attend, first)[:, -1].float())
            said.append(choose(logits[-1], place))
            given = said[-1][:, None]
    return torch.stack(said, 1), torch.stack(logits, 1)


def greedy(logits: torch.Tensor, _: int) -> torch.Tensor:
    """Choose the most likely token."""
    return logits.argmax(-1)


def drawn(seed: int, device: str) -> Choose:
    """Return a choice at random, as likely as the model says; the same draws for every way."""
    generator = torch.Generator(device).manual_seed(seed)

    def choose(logits: torch.Tensor, _: int) -> torch.Tensor:
        shares = logits.softmax(-1).cumsum(-1)
        uniform = torch.rand(len(logits), 1, generator=generator, device=logits.device)
        return torch.searchsorted(shares, uniform).clamp_max(logits.shape[-1] - 1)[:, 0]

    return choose


def forced(tokens: torch.Tensor) -> Choose:
    """Return a choice of tokens that were chosen before. Shapes: tokens [batch, n]."""
    return lambda _, place: tokens[:, place]
