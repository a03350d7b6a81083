"""A small GPT in plain torch: RoPE, grouped queries, RMSNorm; its attention is an argument."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy, rms_norm, silu

from labkernels.experiments.training.text import VOCABULARY

# attend(q, k, v): [batch, context, heads, head_dim] each, k and v with KV heads -> as q, causal.
# A layer that has a window says window=w: a query sees w keys before its own.
Attend = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Size:
    """The sizes of a model.

    hidden: channels between the two matrices of an MLP. rotary: whether queries and keys are turned
    by their place; without it a model knows places by its causal mask alone. window: how many keys
    before its own a query sees in every second layer; None: all of them.
    """

    layers: int = 6
    q_heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    context: int = 512
    hidden: int = 1024
    rotary: bool = True
    window: int | None = None

    @property
    def width(self) -> int:
        """Channels of a token between the layers."""
        return self.q_heads * self.head_dim

    def window_of(self, layer: int) -> int | None:
        """Return how many keys before its own a query of a layer sees."""
        return self.window if layer % 2 else None


class Layer(nn.Module):
    """Attention and an MLP (SwiGLU), each after an RMSNorm and added to its input.

    seen: the options of its attention.
    """

    def __init__(self, size: Size, window: int | None) -> None:
        super().__init__()
        self.size, width = size, size.width
        self.seen = {} if window is None else {"window": window}
        kv = size.kv_heads * size.head_dim
        self.qkv = nn.Linear(width, width + 2 * kv, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 2 * size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, width, bias=False)
        self.norms = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(2))

    def forward(self, x: torch.Tensor, turn: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Shapes: x [batch, context, width] -> the same; turn [context, head_dim / 2] complex."""
        size = self.size
        heads = (size.q_heads, size.kv_heads, size.kv_heads)
        rows = self.qkv(rms_norm(x, x.shape[-1:], self.norms[0]))
        rows = rows.unflatten(-1, (sum(heads), size.head_dim))
        q, k, v = rows.split(heads, dim=2)
        x = x + self.out(attend(rotated(q, turn), rotated(k, turn), v, **self.seen).flatten(2))
        gate, value = self.up(rms_norm(x, x.shape[-1:], self.norms[1])).chunk(2, dim=-1)
        added: torch.Tensor = self.down(silu(gate) * value)
        return x + added


class Gpt(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.layers = nn.ModuleList(Layer(size, size.window_of(i)) for i in range(size.layers))
        self.norm = nn.Parameter(torch.ones(size.width))
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                shrink = (
                    math.sqrt(2 * size.layers)
                    if name.endswith(("out.weight", "down.weight"))
                    else 1
                )
                nn.init.normal_(weight, std=0.02 / shrink)

    def forward(self, tokens: torch.Tensor, attend: Attend, first: int = 0) -> torch.Tensor:
        """Return logits [batch, context, VOCABULARY].

        Shapes: tokens int64 [batch, context]. first: the place of the first token in its text.
        """
        turn = turns(first + tokens.shape[1], self.size.head_dim, tokens.device)[first:]
        turn = turn if self.size.rotary else torch.ones_like(turn)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, turn, attend)
        x = rms_norm(x, x.shape[-1:], self.norm)
        return nn.functional.linear(x, self.embedding.weight)

    def loss(self, tokens: torch.Tensor, following: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Return the mean cross entropy of the following bytes, in nats per byte."""
        return cross_entropy(self(tokens, attend).flatten(0, 1).float(), following.flatten())


def turns(context: int, head_dim: int, device: torch.device) -> torch.Tensor:
    """Return the rotation of each place and pair of channels, [context, head_dim / 2] complex."""
    pair = torch.arange(0, head_dim, 2, device=device) / head_dim
    angle = torch.outer(torch.arange(context, device=device), 10_000.0**-pair)
    return torch.polar(torch.ones_like(angle), angle)


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Return x [batch, context, heads, head_dim], each pair of channels turned by its angle."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn[:, None]).flatten(-2).to(x.dtype)
