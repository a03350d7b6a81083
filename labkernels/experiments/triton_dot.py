"""Triton's Q K^T against the model, bit for bit: tl.dot chains head_dim in ascending chunks."""

import re
from collections.abc import Callable
from datetime import UTC, datetime

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.measure import device
from labkernels.numerics import tensor_core
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row

NAME = "triton_dot"
TITLE = "tl.dot(q, k^T) for tiles of queries and keys: outputs that differ from the model"
DATA_FILE = "triton_dot.csv"

DTYPES, HEAD_DIMS = ("fp16", "bf16"), (64, 128)
TILES = ((16, 64), (64, 64), (128, 128))  # queries, keys
OUTPUTS = 1 << 22  # of each case
MODEL = "the model"
_INSTRUCTION = re.compile(r"(?:wgmma\.mma_async\.sync\.aligned|mma\.sync\.aligned)\.(m\d+n\d+k\d+)")


def run(options: Options) -> Outcome:
    """Hold tl.dot against the model on this machine's GPU, and write the counts.

    Raises: ValueError if there is no GPU or no commit, or its tensor core has no model.
    """
    started, commit = datetime.now(UTC), commit_text(options)
    import torch

    from labkernels.cuda.device import planning_gpu

    gpu = planning_gpu()
    facts = device.facts()
    generator = torch.Generator("cuda").manual_seed(options.seed)
    with device.sampling() as reading:
        rows = list(_cases(gpu.arch, generator, options.progress))
    origin = provenance.collect(
        {**facts, **reading.sensors},
        seed=options.seed,
        repeats=1,
        commit=commit,
        started=started,
    )
    path = options.out / DATA_FILE
    store.replace(path, [row | origin for row in rows], schema.MEASUREMENTS)
    datapackage.write(options.out)
    wrong = sum(row["value"] for row in rows if row["metric"] == f"mismatches, {MODEL}")
    failures = (f"{wrong} outputs differ from the model",) if wrong else ()
    return Outcome(len(rows), (path,), failures)


def _cases(arch: str, generator, say: Callable[[str], None]):
    import torch

    from labkernels.experiments._tensor_core_model import tile_products
    from labkernels.experiments._triton_dot import scores

    for dtype in DTYPES:
        unit = tensor_core.unit_of(arch, dtype)
        for head_dim in HEAD_DIMS:
            for queries, keys in TILES:
                n = OUTPUTS // (queries * keys)
                element = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
                q, k = (
                    torch.randn(n, rows, head_dim, generator=generator, device="cuda").to(element)
                    for rows in (queries, keys)
                )
                s = torch.full((n, queries, keys), float("nan"), device="cuda")
                compiled = scores[(n,)](q, k, s, queries, keys, head_dim)
                used = sorted(set(_INSTRUCTION.findall(compiled.asm["ptx"])))
                columns, zeros = k.transpose(1, 2), torch.zeros_like(s)
                model = tile_products(q, columns, zeros, unit, dtype)
                backwards = tile_products(q.flip(2), columns.flip(1), zeros, unit, dtype)
                case = {"kernel": f"tl.dot {queries}x{keys}", "dtype": dtype, "head_dim": head_dim,
                        "note": " ".join(used)}  # fmt: skip
                counts = {
                    "outputs": s.numel(),
                    f"mismatches, {MODEL}": _unlike(s, model),
                    "mismatches, head_dim descending": _unlike(s, backwards),
                }
                say(f"{case}: {counts}")
                yield from (_row(case, metric, value) for metric, value in counts.items())


def _unlike(s, model) -> int:
    import torch

    return int((s.view(torch.int32) != model.view(torch.int32)).sum())


def _row(case: Row, metric: str, value: int) -> Row:
    words = {
        "experiment": NAME,
        "backend": "triton",
        "tensor_cores": "on",
        "tile": "",
        "policy": "",
    }
    shape = dict.fromkeys(("batch", "kv_len", "q_heads", "kv_heads", "page_size"), 0)
    number = {"metric": metric, "statistic": "exact", "value": value, "unit": "1"}
    return {**words, **shape, **case, **number}
