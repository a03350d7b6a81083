"""Our Triton prefill beside the tutorial kernel that comes with Triton, in one run."""

from dataclasses import dataclass
from datetime import UTC, datetime

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments import _decode_rows as decode_rows
from labkernels.experiments._workers import all_cores
from labkernels.measure import device, timing, triton_tutorial
from labkernels.measure.peers import one_line
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row
from labkernels.units import format_time

NAME = "triton_tutorial"
TITLE = "The Triton prefill beside Triton's own tutorial kernel, and torch's flash backend"
DATA_FILE = "triton_tutorial.csv"
HEAD_DIMS = (64, 128)
LENGTH, TOKENS, CHANNELS = 4096, 16384, 2048
PARTS = 3
RMSE_OVER_FLASH = 2.0  # what FlashAttention's own tests allow themselves over 16-bit torch


@dataclass(frozen=True)
class Shape:
    """Requests of one length, fp16, a KV head a query head."""

    head_dim: int
    causal: bool
    length: int = LENGTH

    @property
    def batch(self) -> int:
        """Requests."""
        return TOKENS // self.length

    @property
    def heads(self) -> int:
        """Query heads."""
        return CHANNELS // self.head_dim

    @property
    def flops(self) -> int:
        """FLOPs of both products; a causal mask counts half the square."""
        return 4 * self.batch * self.heads * self.length**2 * self.head_dim // (1 + self.causal)

    @property
    def word(self) -> str:
        """What a contender's name gets: the mask, which the table has no column for."""
        return "causal" if self.causal else "full"


def run(options: Options) -> Outcome:
    """Time the contenders in turns on every shape; a row needs a right output in the same run.

    Raises: ValueError if there is no GPU or no commit, or a quick run would write to data/.
    """
    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/ and quick is on; allowed: --quick with --out FOLDER")
    started, commit, facts = datetime.now(UTC), commit_text(options), device.facts()
    missing = triton_tutorial.missing(options.peer_path)
    options.progress(missing or f"compiling the candidates of {options.peer_path.name}")
    if missing is None:
        jobs = list(triton_tutorial.compile_jobs(options.peer_path, HEAD_DIMS, PARTS))
        with all_cores() as spread:
            refused = [words for words in spread(triton_tutorial.compile_part, jobs) if words]
        options.progress(f"compiled; {len(refused)} parts said no")
    rows, failures = [], []
    for shape in [Shape(d, causal) for d in HEAD_DIMS for causal in (False, True)]:
        with device.sampling() as reading:
            times, words = _measure(shape, options, missing)
        origin = provenance.collect(
            {**facts, **reading.sensors},
            seed=options.seed,
            repeats=options.repeats,
            commit=commit,
            started=started,
        )
        rows += [origin | row for row in rows_of(shape, times, words)]
        failures += [f"{name}: {why}" for name, why in words.items() if name == "triton_prefill"]
        said = [f"{name} {format_time(took.median_s)}" for name, (took, _) in times.items()]
        options.progress(f"d{shape.head_dim}, {shape.word}: {', '.join(said)}")
    path = options.out / DATA_FILE
    put = store.replace if options.replace else store.append
    put(path, rows, schema.MEASUREMENTS)
    datapackage.write(options.out)
    return Outcome(len(rows), (path,), tuple(failures))


def _measure(shape: Shape, options: Options, missing: str | None) -> tuple[dict, dict[str, str]]:
    import torch

    from labkernels import ops
    from labkernels.kernels.ragged_kv import RaggedKV

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
    """The last request's output in float32, which errs far less than fp16 stores."""
    import torch

    q, k, v = (x[-1].float() for x in dense)
    s = q @ k.transpose(1, 2) * scale
    if shape.causal:
        s = s.masked_fill(torch.ones_like(s[0], dtype=torch.bool).triu(1), float("-inf"))
    return torch.softmax(s, dim=-1) @ v


def _rmse(out, truth) -> float:
    return float((out[-1].float() - truth).square().mean().sqrt())


def rows_of(shape: Shape, times: dict, words: dict[str, str]) -> list[Row]:
    """A shape's rows: quartiles and the rate; or why a contender has none."""
    base = {
        "experiment": NAME,
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
        rows += decode_rows.graph_rows(own, took)
        rate = {"metric": "rate", "statistic": "median", "unit": "FLOP/s"}
        rows.append(own | rate | {"value": shape.flops / took.median_s})
    for name, why in words.items():
        own = base | {"kernel": f"{name}, {shape.word}", "backend": name.split("_")[0]}
        rows.append(own | decode_rows.word_row({}, "unavailable", why))
    return rows
