"""Masks of bits: which keys each query sees, packed as FlashInfer packs a custom mask.

The bits of a request's queries follow each other, each query's from its first key to its last; the
lowest bit of a byte comes first. A request begins with a byte of its own.
"""

from collections.abc import Sequence

import numpy as np
import torch

from labkernels.kernels.checks import require_tensor

WORD_BYTES = 4  # kernels read whole words
_BITS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


def pack_mask(masks: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pack which keys each query sees into the bits that `prefill` takes as its mask.

    Shapes: of each request a bool tensor [q_len, kv_len] -> uint8 [bytes], a multiple of 4.
    Raises: ValueError naming a mask of another type.

    >>> tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()  # two drafts after a token
    >>> pack_mask([tree]).tolist()
    [89, 1, 0, 0]
    """
    parts = []
    for i, mask in enumerate(masks):
        require_tensor(f"masks[{i}]", mask)
        if mask.dtype != torch.bool or mask.dim() != 2:
            found = f"{mask.dtype} {tuple(mask.shape)}"
            raise ValueError(f"masks[{i}] is {found}, allowed: torch.bool [q_len, kv_len]")
        parts.append(_padded(mask.flatten(), 8))
    if not parts:
        raise ValueError("masks = (), allowed: the mask of one request or more")
    bits = torch.cat(parts).view(-1, 8)
    return _padded((bits * _BITS.to(bits.device)).sum(1, dtype=torch.uint8), WORD_BYTES)


def mask_begins(q_lens: np.ndarray, kv_lens: np.ndarray) -> np.ndarray:
    """Return the first byte of each request's bits, and the end of the last: int64 [batch + 1]."""
    return np.concatenate([[0], np.cumsum((q_lens * kv_lens + 7) // 8)]).astype(np.int64)


def mask_words(q_lens: np.ndarray, kv_lens: np.ndarray) -> int:
    """Return how many words of 32 bits a mask has."""
    return -(-int(mask_begins(q_lens, kv_lens)[-1]) // WORD_BYTES)


def require_bits(mask: torch.Tensor, device: torch.device) -> None:
    """Raise ValueError unless kernels can read a mask in whole words."""
    require_tensor("mask", mask)
    if (mask.dtype, mask.dim(), mask.device) != (torch.uint8, 1, device):
        found = f"{mask.dtype} {tuple(mask.shape)} on {mask.device}"
        raise ValueError(f"mask is {found}, allowed: torch.uint8 [bytes] on {device}")
    if not mask.is_contiguous() or mask.data_ptr() % WORD_BYTES:
        where = f"stride {mask.stride()} at address {mask.data_ptr():#x}"
        raise ValueError(f"mask has {where}, allowed: (1,) at a multiple of 4")


def require_words(mask: torch.Tensor, q_lens: np.ndarray, kv_lens: np.ndarray) -> None:
    """Raise ValueError unless a mask has a bit for each query and key, in whole words."""
    needed = WORD_BYTES * mask_words(q_lens, kv_lens)
    if len(mask) < needed:
        words = f"{needed:,} or more, the bits of these requests in whole words"
        raise ValueError(f"len(mask) = {len(mask):,}, allowed: {words}")


def unpacked(mask: torch.Tensor, q_lens: Sequence[int], kv_lens: Sequence[int]) -> np.ndarray:
    """Return the bits as bool [total_q, longest], False past a request's last key."""
    lengths = (np.asarray(q_lens, np.int64), np.asarray(kv_lens, np.int64))
    bits = np.unpackbits(mask.cpu().numpy(), bitorder="little").astype(bool)
    found = np.zeros((int(lengths[0].sum()), int(lengths[1].max(initial=0))), bool)
    first = 0
    for n, keys, begin in zip(*lengths, mask_begins(*lengths)[:-1], strict=True):
        found[first : first + n, :keys] = bits[8 * begin :][: n * keys].reshape(n, keys)
        first += n
    return found


def _padded(values: torch.Tensor, multiple: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, -len(values) % multiple))
