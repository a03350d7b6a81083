"""Compare our Triton prefill with the tutorial kernel that comes with Triton, in one run."""

from collections.abc import Iterator
from dataclasses import dataclass

from labkernels.experiments import rows as measured
from labkernels.experiments.harness import Cell, Experiment, Options, Recording
from labkernels.measure import timing
from labkernels.measure.peers import triton_tutorial
from labkernels.measure.peers.peer import one_line
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE = "performance/triton_tutorial.csv"
HEAD_DIMS = (64, 128)
LENGTH, TOKENS, CHANNELS = 4096, 16384, 2048
PARTS = 3
RMSE_OVER_FLASH = 2.0  # FlashAttention's own tests allow this multiple of 16-bit torch's error


@dataclass(frozen=True)
class Shape:
    """Requests of one length, fp16, one KV head per query head."""

    head_dim: int
    causal: bool
    length: int = LENGTH
    tokens: int = TOKENS

    @property
    def label(self) -> str:
        """The shape as text."""
        return f"{self.batch} x {self.length}, d{self.head_dim}, {self.word}"

    @property
    def batch(self) -> int:
        """The number of requests."""
        return self.tokens // self.length

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return CHANNELS // self.head_dim

    @property
    def flops(self) -> int:
        """FLOPs of both products; a causal mask counts half the square."""
        return 4 * self.batch * self.heads * self.length**2 * self.head_dim // (1 + self.causal)

    @property
    def word(self) -> str:
        """The mask, which is added to an implementation's name: the table has no column for it."""
        return "causal" if self.causal else "full"


def cells(options: Options) -> Iterator[Cell]:
    """Yield the shapes; `quick` gives each a single request of 512 tokens."""
    for head_dim in HEAD_DIMS:
        for causal in (False, True):
            shape = Shape(head_dim, causal, 512, 512) if options.quick else Shape(head_dim, causal)
            yield Cell(shape.label, shape)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Time the implementations in turns on a shape; only those with a right output are timed."""
    missing = recording.once(_compile)
    with recording.sampling():
        times, words = _measure(cell.of, recording.options, missing)
    if "triton_prefill" in words:
        recording.fail(f"triton_prefill on {cell.label}: {words['triton_prefill']}")
    for name, (took, _) in times.items():
        recording.tell(f"{name} {format_time(took.median_s)}")
    yield from ((DATA_FILE, row) for row in rows_of(cell.of, times, words))


def _compile(recording: Recording) -> str | None:
    """Compile the tutorial's candidates on all cores; return why there are none, or None."""
    path = recording.options.peer_path
    missing = triton_tutorial.missing(path)
    if missing is None:
        recording.progress(f"compiling the candidates of {path.name}")
        jobs = list(triton_tutorial.compile_jobs(path, HEAD_DIMS, PARTS))
        refused = [
            words for words in recording.pool.map(triton_tutorial.compile_part, jobs) if words
        ]
        recording.progress(f"compiled; {len(refused)} parts failed")
    return missing


def _measure(shape: Shape, options: Options, missing: str | None) -> tuple[dict, dict[str, str]]:
    import torch

    from labkernels import ops
    from labkernels.kernels.caches.ragged import RaggedKV

    generator = torch.Generator("cuda").manual_seed(options.seed)
    size = (shape.batch * shape.length, shape.heads, shape.head_dim)
    q, k, v = (
        torch.empty(size, dtype=torch.float16, device="cuda").normal_(generator=generator)
        for _ in "qkv"
    )
    ends = torch.arange(shape.batch + 1, dtype=torch.int32, device="cuda") * shape.length
    step = ops.prefill_step(
        q, RaggedKV(k, v, ends), ends, causal=shape.causal, kernel="triton_prefill", splits=1
    )
    dense = [x.view(shape.batch, shape.length, *size[1:]).transpose(1, 2) for x in (q, k, v)]
    dense = [x.contiguous() for x in dense]
    scale = shape.head_dim**-0.5

    def ours() -> torch.Tensor:
        step.run()
        return step.out.view(shape.batch, shape.length, *size[1:]).transpose(1, 2)

    def flash() -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                *dense, is_causal=shape.causal, scale=scale
            )

    runs, plans, words = {"triton_prefill": ours, "torch_flash": flash}, {}, {}
    plans["triton_prefill"] = step.plan
    if missing is not None:
        words["triton_tutorial"] = missing
    else:
        module = triton_tutorial.load(options.peer_path)
        for specialised in triton_tutorial.ways(causal=shape.causal):
            name = "triton_tutorial" + ", warps specialised" * specialised
            try:
                how = {"causal": shape.causal, "scale": scale, "specialised": specialised}
                runs[name] = triton_tutorial.prepare(module, *dense, **how)
            except Exception as error:  # Triton's errors have classes of their own
                words[name] = one_line(error)
    truth = _truth(dense, shape, scale)
    allowed = RMSE_OVER_FLASH * _rmse(flash(), truth)
    for name in list(runs):
        if not _rmse(runs[name](), truth) <= allowed:
            words[name] = f"rmse above {allowed:.2g}, {RMSE_OVER_FLASH:g} times that of torch_flash"
            del runs[name]
    replays = {name: timing.capture(run).replay for name, run in runs.items()}
    took = timing.time_interleaved(replays, repeats=options.repeats)
    return {name: (times, plans.get(name)) for name, times in took.items()}, words


def _truth(dense, shape: Shape, scale: float):
    """Return the last request's output in float32, whose errors are far below fp16's rounding."""
    import torch

    q, k, v = (x[-1].float() for x in dense)
    s = q @ k.transpose(1, 2) * scale
    if shape.causal:
        s = s.masked_fill(torch.ones_like(s[0], dtype=torch.bool).triu(1), float("-inf"))
    return torch.softmax(s, dim=-1) @ v


def _rmse(out, truth) -> float:
    return float((out[-1].float() - truth).square().mean().sqrt())


def rows_of(shape: Shape, times: dict, words: dict[str, str]) -> list[Row]:
    """Return a shape's rows: quartiles and rate, or why an implementation has no times."""
    base = {
        "tensor_cores": "on",
        "batch": shape.batch,
        "kv_len": shape.length,
        "q_heads": shape.heads,
        "kv_heads": shape.heads,
        "head_dim": shape.head_dim,
        "page_size": 0,
        "dtype": "fp16",
    }
    rows = []
    for name, (took, plan) in times.items():
        own = base | {"kernel": f"{name}, {shape.word}", "backend": name.split("_")[0]}
        own |= {"tile": plan.tile if plan else ""}
        rows += measured.graph_rows(own, took)
        rate = shape.flops / took.median_s
        rows.append(measured.row(own, "rate", "median", rate, "FLOP/s"))
    for name, why in words.items():
        own = base | {"kernel": f"{name}, {shape.word}", "backend": name.split("_")[0]}
        rows.append(measured.reason_row(own, "unavailable", why))
    return rows


EXPERIMENT = Experiment(
    "triton_tutorial",
    "The Triton prefill beside Triton's own tutorial kernel, and torch's flash backend",
    {DATA_FILE: schema.MEASUREMENTS},
    cells,
    rows,
)
