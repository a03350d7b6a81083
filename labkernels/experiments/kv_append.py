"""Appending to a paged cache: the bytes a second of our kernel, beside a plain copy and others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments import _decode_rows as decode_rows
from labkernels.measure import append_peers, device, peers, timing
from labkernels.measure.peers import one_line
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row
from labkernels.units import format_rate, format_time

NAME = "kv_append"
TITLE = "Appending keys and values to a paged cache, beside torch's copies and FlashInfer"
DATA_FILE = "kv_append.csv"
PLAN_FACTS = {"blocks": "blocks", "launches": "1"}


@dataclass(frozen=True)
class Shape:
    """Requests that hold `before` keys and get `new` more."""

    batch: int
    before: int
    new: int
    kv_heads: int
    head_dim: int
    page_size: int = 16
    dtype: str = "bf16"

    @property
    def total(self) -> int:
        """New keys in all."""
        return self.batch * self.new

    @property
    def moved_bytes(self) -> int:
        """Bytes of the new keys and values, each read once and written once."""
        return 2 * 2 * self.total * self.kv_heads * self.head_dim * 2

    @property
    def label(self) -> str:
        """The shape in words."""
        heads = f"{self.kv_heads} heads of {self.head_dim}"
        return f"{self.batch} x {self.new} after {self.before}, {heads}, page {self.page_size}"


SHAPES = (
    *(Shape(16, 1024, 4096, 8, 128, page_size) for page_size in (1, 16, 64, 256)),
    Shape(4, 1024, 16384, 8, 64),
    Shape(4, 1024, 16384, 8, 256),
    Shape(64, 1024, 1024, 1, 128),
    Shape(57, 8191, 1, 8, 128),
)


@dataclass(frozen=True, eq=False)
class Case:
    """Tensors of a shape: the cache, the new rows, and where each of them goes."""

    shape: Shape
    cache: object
    k_new: object
    v_new: object
    cu_seqlens: object
    slots: object  # of each new row, counted through the pool

    def reset(self) -> None:
        """Put the lengths back to what they were."""
        self.cache.kv_len.fill_(self.shape.before)

    def holds_the_rows(self) -> bool:
        """Whether the pools hold the new rows, bit for bit, and NaN everywhere else."""
        import torch

        for pool, rows in ((self.cache.k, self.k_new), (self.cache.v, self.v_new)):
            flat = pool.flatten(0, 1)
            if not torch.equal(flat[self.slots], rows):
                return False
            written = int((~flat[:, 0, 0].isnan()).sum())
            if written != self.shape.total:
                return False
        return True


def make_case(shape: Shape, *, seed: int, device: str = "cuda") -> Case:
    """Random rows, and a cache whose pages lie in random order and hold NaN."""
    import torch

    from labkernels.kernels.paged_kv import PagedKV

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[shape.dtype]
    generator = torch.Generator(device).manual_seed(seed)
    pages = -(-(shape.before + shape.new) // shape.page_size)
    order = torch.randperm(shape.batch * pages, generator=generator, device=device)
    table = order.view(shape.batch, pages).int()
    row = (shape.kv_heads, shape.head_dim)
    pools = [
        torch.full((len(order), shape.page_size, *row), float("nan"), dtype=dtype, device=device)
        for _ in "kv"
    ]
    k_new, v_new = (
        torch.empty(shape.total, *row, dtype=dtype, device=device).normal_(generator=generator)
        for _ in "kv"
    )
    lengths = torch.full((shape.batch,), shape.before, dtype=torch.int32, device=device)
    ends = torch.arange(shape.batch + 1, dtype=torch.int32, device=device) * shape.new
    position = shape.before + torch.arange(shape.new, device=device)
    slots = table[:, position // shape.page_size].long() * shape.page_size
    slots = (slots + position % shape.page_size).flatten()
    return Case(shape, PagedKV(*pools, table, lengths), k_new, v_new, ends, slots)


def contenders(case: Case) -> dict[str, tuple[str, Callable[[], object], object | None]]:
    """Each contender's backend, what it runs, and its plan if it is ours.

    Ours reads the lengths and advances them: a run of it puts them back first. The others are given
    the places of all rows, found outside the timed part.
    """
    import torch

    from labkernels import ops

    shape, cache = case.shape, case.cache
    step = ops.append_step(cache, case.k_new, case.v_new, case.cu_seqlens)

    def ours() -> None:
        case.reset()
        step.run()

    rows = (case.k_new, case.v_new)
    copies = append_peers.index_copy(cache, *rows, case.slots)
    found = {"append": ("cuda", ours, step.plan), "torch_index_copy": ("torch", copies, None)}
    if peers.flashinfer_missing() is None:
        cache.kv_len.fill_(shape.before + shape.new)
        row = torch.arange(shape.total, dtype=torch.int32, device=cache.k.device)
        places = (row // shape.new, shape.before + row % shape.new)
        theirs = append_peers.flashinfer(cache, *rows, *places)
        found["flashinfer_append"] = ("flashinfer", theirs, None)
    return found


def run(options: Options) -> Outcome:
    """Time every contender on every shape; a row needs the right bits in the same run.

    Raises: ValueError if there is no GPU or no commit, or a quick run would write to data/.
    """
    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/ and quick is on; allowed: --quick with --out FOLDER")
    started, commit, facts = datetime.now(UTC), commit_text(options), device.facts()
    rows: list[Row] = []
    failures: list[str] = []
    for shape in SHAPES[1:2] if options.quick else SHAPES:
        case = make_case(shape, seed=options.seed)
        with device.sampling() as reading:
            times, words = _measure(case, options.repeats)
        origin = provenance.collect(
            {**facts, **reading.sensors},
            seed=options.seed,
            repeats=options.repeats,
            commit=commit,
            started=started,
        )
        rows += [origin | row for row in rows_of(shape, times, words)]
        failures += [f"{name} on {shape.label}: {why}" for name, (_, why) in words.items()]
        said = ", ".join(
            f"{name} {format_time(took.median_s)} {format_rate(shape.moved_bytes / took.median_s)}"
            for name, (_, took, _) in times.items()
        )
        options.progress(f"{shape.label}: {said}")
    path = options.out / DATA_FILE
    put = store.replace if options.replace else store.append
    put(path, rows, schema.MEASUREMENTS)
    datapackage.write(options.out)
    return Outcome(len(rows), (path,), tuple(failures))


def _measure(case: Case, repeats: int) -> tuple[dict, dict[str, tuple[str, str]]]:
    """Backend, times and plan of each contender whose bits are right; backend and words else."""
    ready, words = {}, {}
    chosen = contenders(case)  # a graph does not own what it launches with: this does
    for name, (backend, action, plan) in chosen.items():
        try:
            ready[name] = (backend, timing.capture(action).replay, plan)
        except Exception as error:  # each library has error classes of its own
            words[name] = backend, one_line(error)
    copy = append_peers.plain_copy(case.k_new, case.v_new)
    actions = {name: replay for name, (_, replay, _) in ready.items()}
    actions["torch_copy"] = timing.capture(copy).replay
    took = timing.time_interleaved(actions, repeats=repeats)
    times = {"torch_copy": ("torch", took["torch_copy"], None)}
    for name, (backend, replay, plan) in ready.items():
        for pool in (case.cache.k, case.cache.v):
            pool.fill_(float("nan"))
        replay()
        if case.holds_the_rows():
            times[name] = (backend, took[name], plan)
        else:
            words[name] = backend, "the pools do not hold the new rows, or hold something else"
    return times, words


def rows_of(
    shape: Shape, times: Mapping[str, tuple], words: Mapping[str, tuple[str, str]]
) -> list[Row]:
    """A shape's rows: quartiles, bytes a second, the plan; or why a contender has none."""
    base = {
        "experiment": NAME,
        "batch": shape.batch,
        "kv_len": shape.before + shape.new,
        "q_heads": 0,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "page_size": shape.page_size,
        "dtype": shape.dtype,
        "note": shape.label,
    }
    rows = []
    for name, (backend, took, plan) in times.items():
        own = base | {"kernel": name, "backend": backend, "tile": plan.tile if plan else ""}
        rows += decode_rows.graph_rows(own, took)
        rate = shape.moved_bytes / took.median_s
        rows.append(own | _cell("bandwidth", "median", rate, "bytes/s") | {"repeats": took.repeats})
        if plan is not None:
            rows += [
                own | _cell(fact, "exact", getattr(plan, fact), unit)
                for fact, unit in PLAN_FACTS.items()
            ]
    for name, (backend, why) in words.items():
        failed = {"kernel": name, "backend": backend, "note": why}
        rows.append(base | failed | _cell("failed", "exact", 1, "1"))
    return rows


def _cell(metric: str, statistic: str, value: float, unit: str) -> Row:
    return {"metric": metric, "statistic": statistic, "value": value, "unit": unit}
