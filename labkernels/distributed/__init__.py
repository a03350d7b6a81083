"""Attention whose keys lie on several ranks of torch.distributed."""

from labkernels.distributed.decode import context_parallel_decode, decode_in_parts
from labkernels.distributed.gradients import Rows, ring_backward, ring_backward_in_turn
from labkernels.distributed.launch import on_cpus, on_gpus
from labkernels.distributed.order import order_of_sums, sums_in_order
from labkernels.distributed.ranks import LostRank, Ranks
from labkernels.distributed.ring import Block, ring_prefill, ring_rows_step, zigzag
from labkernels.distributed.shards import shard

__all__ = [
    "Block",
    "LostRank",
    "Ranks",
    "Rows",
    "context_parallel_decode",
    "decode_in_parts",
    "on_cpus",
    "on_gpus",
    "order_of_sums",
    "ring_backward",
    "ring_backward_in_turn",
    "ring_prefill",
    "ring_rows_step",
    "shard",
    "sums_in_order",
    "zigzag",
]
