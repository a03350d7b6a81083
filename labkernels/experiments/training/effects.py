"""What a way of attention does to the logits of a language model."""

from collections.abc import Iterator

import torch
from torch.nn.functional import kl_div

from labkernels.experiments.training import ways
from labkernels.experiments.training.model import Gpt

WHOLE_MODEL = "torch fp32, model in bf16"
Found = Iterator[tuple[str, torch.Tensor]]  # metric, and its value for each sample


class Logits:
    """A model, texts that it never saw, and what each way of attention does to their logits.

    Shapes: tokens, following [batch, context].
    """

    def __init__(self, model: Gpt, tokens: torch.Tensor, following: torch.Tensor) -> None:
        self.model, self.tokens, self.following = model, tokens, following
        self.want = self._pass("rounded inputs")

    @torch.no_grad()
    def _pass(self, way: str) -> torch.Tensor:
        """Return the logits of the judged text; all but attention is in fp32."""
        if way == WHOLE_MODEL:
            with torch.autocast(self.tokens.device.type, torch.bfloat16):
                return self.model(self.tokens, ways.WAYS["torch fp32"]()).float()
        attend = ways.rounded_inputs if way == "rounded inputs" else ways.WAYS[way]()
        return self.model(self.tokens, attend)

    def measured(self, way: str) -> Found:
        """Compare logits with those of attention in fp32 on the same rounded inputs."""
        found, want = self._pass(way), self.want
        yield (
            "KL, nats per byte",
            kl_div(found.log_softmax(-1), want.log_softmax(-1), reduction="none", log_target=True)
            .sum(-1)
            .mean(-1),
        )
        yield "loss, nats per byte", -_of(found, self.following).mean(-1)
        yield "RMSE of logits", (found - want).square().mean((1, 2)).sqrt()
        yield "other next bytes", (found.argmax(-1) != want.argmax(-1)).float().mean(-1)


def _of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log probability of each token. Shapes: [batch, n, VOCABULARY], [batch, n]."""
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
