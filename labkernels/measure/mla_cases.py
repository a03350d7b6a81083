"""Random inputs of an MLA decode workload, the same for every contender."""

from collections.abc import Callable
from dataclasses import dataclass

from labkernels.measure.cases import exact_normal, n_pages, normal, scattered
from labkernels.workload import MlaDecode


@dataclass(frozen=True, eq=False)
class MlaCase:
    """Tensors of one workload on one device.

    Shapes: q_nope [total_q, H, 512], q_pe [total_q, H, 64]; cache a kernels.latent_kv.LatentKV
    whose pages lie in random order; cu_seqlens_q [B + 1]
    """

    workload: MlaDecode
    q_nope: object
    q_pe: object
    cache: object
    cu_seqlens_q: object
    scale: float

    @property
    def q(self):
        """A copy of the query's parts side by side, as attention's q: [total_q, H, 576]."""
        import torch

        return torch.cat([self.q_nope, self.q_pe], dim=-1)


def mla_case(workload: MlaDecode, *, seed: int, device: str = "cuda") -> MlaCase:
    """Return standard normal queries and latent rows.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    return _case(workload, *normal(workload.dtype, seed=seed, device=device), device)


def exact_mla_case(workload: MlaDecode, *, seed: int, device: str) -> MlaCase:
    """Return a case with the same bits on every machine, as `cases.exact_decode_case`.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    return _case(workload, *exact_normal(workload.dtype, seed=seed, device=device), device)


def _case(workload: MlaDecode, draw: Callable, shuffle: Callable, device: str) -> MlaCase:
    import torch

    from labkernels.kernels.latent_kv import LatentKV

    heads, channels = workload.q_heads, (workload.latent_dim, workload.rope_dim)
    q_nope, q_pe = (draw(workload.batch * workload.q_len, heads, n) for n in channels)
    pages = n_pages(workload.kv_lens, workload.page_size)
    ckv, kpe = (draw(pages, workload.page_size, n) for n in channels)
    table = scattered(workload.kv_lens, workload.page_size, shuffle, device)
    lengths = torch.tensor(workload.kv_lens, dtype=torch.int32, device=device)
    ends = torch.arange(workload.batch + 1, dtype=torch.int32, device=device) * workload.q_len
    cache = LatentKV(ckv, kpe, table, lengths)
    return MlaCase(workload, q_nope, q_pe, cache, ends, cache.default_scale)
