"""Families of inputs: what models feed to attention, in the same bits on every machine."""

from labkernels.measure.cases import DecodeCase, exact_decode_case
from labkernels.workload import Decode

FAMILIES = ("normal", "peaky", "sink", "outlier", "mean-shifted")
_PEAKY = 6  # times q: a few keys carry all the weight
_SINK_VALUE = 0.125
_OUTLIER_SHARE, _OUTLIER = 0.002, 32


def family_case(family: str, workload: Decode, *, seed: int, device: str) -> DecodeCase:
    """Nearly normal inputs, changed after one family.

    peaky: large queries. sink: the first key is near all queries of its group, its value small.
    outlier: few values are large. mean-shifted: values have the mean 1.
    Raises: ValueError naming the families there are.
    """
    if family not in FAMILIES:
        raise ValueError(f"family = {family!r}, allowed: {', '.join(FAMILIES)}")
    case = exact_decode_case(workload, seed=seed, device=device)
    if family == "peaky":
        case.q.mul_(_PEAKY)
    elif family == "mean-shifted":
        case.cache.v.add_(1)
    elif family == "outlier":
        _add_outliers(case.cache.v, seed)
    elif family == "sink":
        _add_sinks(case)
    return case


def _add_outliers(v, seed: int) -> None:
    import numpy as np
    import torch

    words = np.random.PCG64([seed, 1]).random_raw(v.numel())
    chosen = torch.from_numpy(words < np.uint64(_OUTLIER_SHARE * 2**64)).view(v.shape)
    v.mul_(torch.where(chosen, _OUTLIER, 1).to(v))


def _add_sinks(case: DecodeCase) -> None:
    k, v = case.cache.k, case.cache.v
    for b, length in enumerate(case.workload.kv_lens):
        if length:
            page = int(case.cache.page_table[b, 0])
            mean = case.q[b].double().view(k.shape[2], -1, case.q.shape[-1]).mean(1)
            k[page, 0] = (2 * mean).to(k)
            v[page, 0] *= _SINK_VALUE
