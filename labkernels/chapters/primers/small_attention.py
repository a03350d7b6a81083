"""Requests for the small attention kernel, their answers in float64, and the kernel's answers."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from labkernels.budget import Line, array_bytes, number
from labkernels.chapters.primers import machine
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy
from labkernels.units import LOG2_E

HEADER = "attention.cuh"
DIM, KEYS, ROWS = 32, 32, 4
_STATE = number(3, "numbers of a state")
ATTEND = machine.SmallKernel.of(
    HEADER,
    "small_attention::attend",
    32 * ROWS,
    (Line("m, l and o", _STATE), Line("the score and its weight", 2)),
    Line("q", array_bytes(ROWS, DIM, dtype="fp32")),
    Line("K, padded against bank conflicts", array_bytes(KEYS, DIM + 1, dtype="fp32")),
    Line("V", array_bytes(KEYS, DIM, dtype="fp32")),
    Line("P", array_bytes(ROWS, KEYS, dtype="fp32")),
)
MERGE = machine.SmallKernel.of(
    HEADER,
    "small_attention::merge_splits",
    32,
    (Line("the states of two splits", number(2, "states") * _STATE),),
)
POLICY = NumericPolicy(p="fp32", accumulate="fma", out="fp32")


@dataclass(frozen=True)
class Request:
    """One request: its query tokens, its heads, and how its keys lie in the pool.

    rising: the scores grow along the keys, so that later tiles move the running maximum of many
    rows. levels: what is added to the scores of the first and of the last key, and in equal steps
    between them, in log2 units; at most 32 rows share a KV head. first_page: the number of the
    pool's first page, as if so many pages lay before it. nan_key: the key of KV head 0 that has a
    NaN.
    """

    policy: ClassVar[NumericPolicy] = POLICY
    name: str
    kv_len: int = 96
    n_queries: int = 1
    group: int = 4
    kv_heads: int = 1
    page_size: int = 16
    splits: int = 1
    causal: bool = False
    rising: bool = False
    levels: tuple[float, float] = (0.0, 0.0)
    first_page: int = 0
    nan_key: int | None = None
    seed: int = 1

    def draw(self) -> dict[str, np.ndarray]:
        """Draw q, and pools with pages in random order and NaN in every unused token.

        Shapes: q [n_queries, heads, 32]; pools [pages, page_size, kv_heads, 32].
        """
        rng = np.random.default_rng(self.seed)
        n_pages = -(-self.kv_len // self.page_size)
        q = rng.standard_normal((self.n_queries, self.kv_heads * self.group, DIM))
        keys = rng.standard_normal((2, n_pages * self.page_size, self.kv_heads, DIM))
        if self.rising:
            ramp = np.linspace(0, 6, len(keys[0]))
            keys[0] += ramp[:, None, None] * q.mean(axis=(0, 1)) / np.sqrt(DIM)
        if any(self.levels):
            steps = np.linspace(*self.levels, self.kv_len) * math.sqrt(DIM) / LOG2_E
            keys[0, : self.kv_len] += steps[:, None, None] * self._directions(q)
        keys[:, self.kv_len :] = np.nan
        if self.nan_key is not None:
            keys[0, self.nan_key, 0, 0] = np.nan
        table = rng.permutation(n_pages + 2)[:n_pages].astype(np.int32)
        pools = np.full((2, n_pages + 2, self.page_size, self.kv_heads, DIM), np.nan)
        pools[:, table] = keys.reshape(2, n_pages, self.page_size, self.kv_heads, DIM)
        k_pool, v_pool = pools.astype(np.float32)
        return {"q": q.astype(np.float32), "k_pool": k_pool, "v_pool": v_pool, "page_table": table}

    def _directions(self, q: np.ndarray) -> np.ndarray:
        """Return a key of every KV head whose product with each of its queries is 1."""
        rows = q.reshape(self.n_queries, self.kv_heads, self.group, DIM).swapaxes(0, 1)
        return np.linalg.pinv(rows.reshape(self.kv_heads, -1, DIM)).sum(axis=-1)

    def problem(self) -> Problem:
        """Return the same inputs as a float64 problem."""
        inputs = self.draw()
        return Problem(
            inputs["q"],
            inputs["k_pool"],
            inputs["v_pool"],
            inputs["page_table"][None],
            np.array([self.kv_len]),
            scale=1 / math.sqrt(DIM),
            cu_seqlens_q=np.array([0, self.n_queries]),
            causal=self.causal,
        )


def attend(
    request: Request,
    folders: tuple[Path, ...] = (machine.FOLDER,),
    merge_folders: tuple[Path, ...] = (machine.FOLDER,),
) -> tuple[np.ndarray, np.ndarray]:
    """Run the kernel on the CPU machine; return out [n_queries, heads, 32] and lse2.

    The source of `attend` is looked for in `folders`, that of `merge_splits` in `merge_folders`.
    Raises: HostKernelError if the kernel does something that a kernel must not do.
    """
    inputs = request.draw()
    heads = (request.n_queries, request.kv_heads * request.group)
    poison = {
        "out": (*heads, DIM),
        "lse2": heads,
        "partial_o": (*heads, request.splits, DIM),
        "partial_m": (*heads, request.splits),
        "partial_l": (*heads, request.splits),
    }
    outputs = {name: np.full(shape, np.nan, np.float32) for name, shape in poison.items()}
    tiles_per_split = -(-request.kv_len // (KEYS * request.splits))
    numbers = {
        "n_queries": request.n_queries,
        "group": request.group,
        "kv_heads": request.kv_heads,
        "kv_len": request.kv_len,
        "page_size": request.page_size,
        "keys_per_split": tiles_per_split * KEYS,
        "splits": request.splits,
        "causal": int(request.causal),
        "scale": 1 / math.sqrt(DIM),
    }
    arguments = inputs | outputs | numbers
    first_page = 0 if machine.uses_gpu() else request.first_page
    arguments["page_table"] = inputs["page_table"] + np.int32(first_page)
    before = first_page * inputs["k_pool"][0].nbytes
    blocks = -(-request.n_queries * request.group // ROWS)
    ATTEND.run(
        arguments,
        grid=(blocks, request.kv_heads, request.splits),
        writes=("partial_o", "partial_m", "partial_l"),
        folders=folders,
        before={"k_pool": before, "v_pool": before},
    )
    MERGE.run(
        arguments,
        grid=(heads[0] * heads[1],),
        writes=("out", "lse2"),
        folders=merge_folders,
    )
    return outputs["out"], outputs["lse2"]
