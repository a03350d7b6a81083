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


def made(splits: int, keys_per_split: int) -> Schedule:
    return Schedule(np.zeros((0, 4), np.int32), keys_per_split, splits, 0)


@pytest.mark.parametrize(
    ("page_size", "expected"),
    [(1, 0), (3, 0), (8, 8), (16, 16), (24, 8), (64, 64), (96, 32), (256, 64)],
)
def test_whole_boxes_make_a_page_and_a_block(page_size, expected):
    assert box_keys(latent_kv(page_size), made(1, 70), TILE.keys) == expected


@pytest.mark.parametrize(("keys_per_split", "expected"), [(128, 64), (80, 16), (72, 8), (70, 0)])
def test_whole_boxes_make_a_split(keys_per_split, expected):
    assert box_keys(latent_kv(64), made(3, keys_per_split), TILE.keys) == expected


def test_pages_apart_have_no_boxes():
    assert box_keys(latent_kv(64, spare_keys=8), made(1, 64), TILE.keys) == 0
