"""A model writes token by token: keys and values in a paged cache, attention by `decode`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from labkernels.experiments.training import ways
from labkernels.experiments.training.model import Gpt
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.decode.api import decode_step
from labkernels.policy import CUDA_CORES, TENSOR_CORES, NumericPolicy

PAGE = 64
# choose(logits [batch, VOCABULARY], place): the next tokens, [batch]
Choose = Callable[[torch.Tensor, int], torch.Tensor]


class Cache:
    """The keys and values of all layers, and the steps that attend to them.

    options: of `decode_step`. `attend` is called once for each layer, in order.
    """

    def __init__(self, model: Gpt, batch: int, options: Mapping[str, Any]) -> None:
        size, device = model.size, model.norm.device
        pages = -(-size.context // PAGE)
        pools = (size.layers, 2, batch, pages * PAGE, size.kv_heads, size.head_dim)
        self.pools = torch.zeros(pools, dtype=torch.bfloat16, device=device)
        self.kv_len = torch.zeros(batch, dtype=torch.int32, device=device)
        q = (size.layers, batch, size.q_heads, size.head_dim)
        self.q = torch.zeros(q, dtype=torch.bfloat16, device=device)
        table = torch.arange(batch * pages, dtype=torch.int32, device=device).view(batch, -1)
        self.length = self._layer = 0
        self.steps = []
        for q_of_layer, pool in zip(self.q, self.pools, strict=True):
            cache = PagedKV(*pool.unflatten(2, (-1, PAGE)).flatten(1, 2), table, self.kv_len)
            self.steps.append(decode_step(q_of_layer, cache, checks=False, **options))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Keep k and v, and return attention of the new tokens to all that were kept."""
        layer, new = self._layer, q.shape[1]
        if layer == 0:
            self.length += new
            self.kv_len.fill_(self.length)
        self._layer = (layer + 1) % len(self.q)
        kept = self.pools[layer][:, :, : self.length]
        kept[:, :, -new:] = torch.stack((k, v))
        if new > 1:  # the prompt
            return ways.WAYS["tensor cores"]()(q, k, v)
        self.q[layer] = q[:, 0]
        self.steps[layer].run()
        return self.steps[layer].out[:, None].to(q.dtype)


# How each way decodes: the options of `decode_step`.
DECODES: Mapping[str, Mapping[str, Any]] = {
    "tensor cores": {"policy": TENSOR_CORES},
    "batch invariant": {"policy": TENSOR_CORES, "batch_invariant": True},
    "rounded denominator": {"policy": NumericPolicy(denominator="rounded")},
    "P as hi + lo": {"policy": NumericPolicy(p="input_x2")},
    "CUDA cores": {"policy": CUDA_CORES, "kernel": "decode_fma"},
}


@torch.no_grad()
def generated(
    model: Gpt, prompts: torch.Tensor, way: str, tokens: int, choose: Choose
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that follow prompts, and the logits that they were chosen from.

    Shapes: prompts [batch, n] -> [batch, tokens], [batch, tokens, VOCABULARY].
    """
    cache = Cache(model, len(prompts), DECODES[way])
    said, logits, given = [], [], prompts
    with torch.autocast(prompts.device.type, torch.bfloat16):
        for place in range(tokens):
            first = 0 if place == 0 else prompts.shape[1] + place - 1
            logits.append(model(given, cache.attend, first)[:, -1].float())
            said.append(choose(logits[-1], place))
            given = said[-1][:, None]
    return torch.stack(said, 1), torch.stack(logits, 1)


def drawn(seed: int, device: str) -> Choose:
    """Return a choice at random, as likely as the model says; the same draws for every way."""
    generator = torch.Generator(device).manual_seed(seed)

    def choose(logits: torch.Tensor, _: int) -> torch.Tensor:
        shares = logits.softmax(-1).cumsum(-1)
        uniform = torch.rand(len(logits), 1, generator=generator, device=logits.device)
        return torch.searchsorted(shares, uniform).clamp_max(logits.shape[-1] - 1)[:, 0]

    return choose
