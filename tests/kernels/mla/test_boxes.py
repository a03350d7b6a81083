"""A box of mla_wgmma's tensor maps has so many keys that whole boxes make a page and a split."""

import numpy as np
import pytest
import torch

from labkernels.kernels.caches.latent import LATENT_DIM, ROPE_DIM, LatentKV
from labkernels.kernels.mla.wgmma.launch import box_keys
from labkernels.kernels.mla.wgmma.spec import TILE
from labkernels.kernels.packed_gqa.schedule import Schedule


def latent_kv(page_size: int, *, spare_keys: int = 0) -> LatentKV:
    """Return two pages, each followed by `spare_keys` keys of another tensor."""
    ckv, kpe = (
        torch.zeros(2, page_size + spare_keys, channels, dtype=torch.bfloat16)[:, :page_size]
        for channels in (LATENT_DIM, ROPE_DIM)
    )
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    return LatentKV(ckv, kpe, table, torch.tensor([page_size], dtype=torch.int32))


@pytest.mark.parametrize(
    ("page_size", "splits", "keys_per_split", "expected"),
    [
        *((n, 1, 70, keys) for n, keys in ((1, 0), (3, 0), (8, 8), (16, 16), (24, 8), (64, 64))),
        *((n, 1, 70, keys) for n, keys in ((96, 32), (256, 64))),
        *((64, 3, cut, keys) for cut, keys in ((128, 64), (80, 16), (72, 8), (70, 0))),
    ],
)
def test_whole_boxes_make_a_page_and_a_split(page_size, splits, keys_per_split, expected):
    cut = Schedule(np.zeros((0, 4), np.int32), keys_per_split, splits, 0)
    assert box_keys(latent_kv(page_size), cut, TILE.keys) == expected
    assert box_keys(latent_kv(page_size, spare_keys=8), cut, TILE.keys) == 0, "pages lie apart"
