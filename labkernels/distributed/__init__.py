"""Attention whose keys lie on several ranks of torch.distributed."""

from labkernels.distributed.decode import context_parallel_decode, decode_in_parts
from labkernels.distributed.gradients import Rows, ring_backward, ring_backward_in_turn
from labkernels.distributed.launch import on_cpus, on_gpus
from labkernels.distributed.ranks import LostRank, Ranks
from labkernels.distributed.ring import ring_prefill, ring_rows, zigzag
from labkernels.distributed.shards import shard

__all__ = [
    "LostRank",
    "Ranks",
    "Rows",
    "context_parallel_decode",
    "decode_in_parts",
    "on_cpus",
    "on_gpus",
    "ring_backward",
    "ring_backward_in_turn",
    "ring_prefill",
    "ring_rows",
    "shard",
    "zigzag",
]
