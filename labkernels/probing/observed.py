"""The isolating experiments of one case, and what they showed: the syndrome.

- the same row of V everywhere: the output must be that row, whatever the weights are, so channels,
  stores and the sum of weights show; with q = 0, with one score for all keys, and with random ones;
- V constant for each request and head: least squares say whose V each row has;
- one-hot V: an output channel is a weight, so ceil(N / Dv) calls read all of them; with q = 0 (mask
  and counts), random, rising and falling scores (maxima move: rescales and merges are at work);
- q = one channel: log weights are what the kernel sees of K. K = one channel for each key, in an
  order that no tile or residue has: log weights are what the kernel sees of Q.
"""

import numpy as np

from labkernels.defects import STORE
from labkernels.probing.case import Case
from labkernels.probing.reading import Kind, Reading
from labkernels.probing.report import Datasheet, Defect, defect

SAME, ONE_SCORE, MIXED = "q = 0", "one score", "random scores"
COUNTS, RANDOM, RISING, FALLING, Q_READ = "q = 0", "random", "rising", "falling", "Q read"
MOST_KEYS = 600  # reading K and Q of more keys would take too many calls
CODE = 1.3  # natural score of one unit of a channel, in the readings of K and Q


class Observed:
    """What the experiments showed of a case.

    same: for each kind of scores, out / row over the sum of weights, where that is wrong, and out
    [B, H, M, Dv]. share, own: how much of each head's V a row has, and should have
    [B, H, M, B, Hkv]. reads: the readings by name; k_reads: those of K, one for each channel.
    """

    def __init__(self, case: Case, sheet: Datasheet):
        self.c, self.sheet = case, sheet
        self.reads: dict[str, Reading] = {}
        self.same: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self.failed: list[str] = []
        self.empty: Defect | None = None

    def fail(self, name: str) -> None:
        """Note that an experiment failed."""
        self.failed.append(name)
        self.sheet.failed.append(f"{self.c.label}: {name}")

    def run(self) -> None:
        """Run all experiments; K and Q are read where anything failed."""
        self.same_v()
        self.head_map()
        for name, q, k in inputs(self.c):
            self.read(name, q, k)
        if self.failed:
            self.read_maps()

    def same_v(self) -> None:
        """V's row everywhere: with q = 0, one score for all keys, and random scores."""
        c = self.c
        flat = one_score(c, 2.0)
        self.flat_score = float(c.scores(*flat)[c.seen].max(initial=-np.inf))
        for name, q, k in ((SAME, c.zero, c.k), (ONE_SCORE, *flat), (MIXED, c.q, c.k)):
            w, _ = c.weights(c.scores(q, k))
            out = c.call(q, k, c.like(c.v, c.row))
            total = np.where(w.sum(-1) == 0, 1, w.sum(-1))
            ratio = out / c.row / total[..., None]
            wrong = ~(np.abs(ratio - 1) <= c.tol) & c.seen_any[..., None]
            self.same[name] = ratio, wrong, out
            if wrong.any():
                self.fail(f"same V, {name}")
        empty = ~c.seen_any
        if not (out[empty] == 0).all():
            self.fail("rows without keys")
            words = f"the first is {out[empty].flat[0]:.3g}"
            self.empty = defect(STORE, "rows without keys are not 0", words, empty)

    def head_map(self) -> None:
        """V constant for each request and KV head, with q = 0."""
        c, s = self.c, self.c.s
        signs = c.rng.choice([-1.0, 1.0], (s.batch * s.kv_heads, s.dim_v))
        ids = c.rounded(signs * c.rng.uniform(0.5, 2, signs.shape))
        self.ids = ids.reshape(s.batch, s.kv_heads, s.dim_v)
        out = self.id_out = c.call(c.zero, c.k, np.broadcast_to(self.ids[:, :, None], c.v.shape))
        w, _ = c.weights(c.scores(c.zero, c.k))
        found = np.linalg.lstsq(ids.T, np.nan_to_num(out.reshape(-1, s.dim_v)).T, rcond=None)[0]
        share = found.T.reshape(*out.shape[:3], s.batch, s.kv_heads)
        self.share = share = share / np.maximum(w.sum(-1), 1e-9)[..., None, None]
        b, h, m = np.nonzero(c.seen_any)
        self.own = own = np.zeros_like(share)
        own[b, h, m, b, h // c.group] = 1.0
        wrong = np.abs(share - own) > np.where(own > 0, 4 * c.tol, c.u + 3e-4)
        self.map_wrong = wrong.any((-1, -2))
        if self.map_wrong.any():
            self.fail("head map")

    def read(self, name: str, q: np.ndarray, k: np.ndarray) -> Reading:
        """Read the weights of q and k (once), and compare them."""
        if name not in self.c.raw:
            self.c.raw[name] = self.c.read(q, k)
        r = Reading(name, self.c, self.c.raw[name], self.c.scores(q, k))
        self.reads[name] = r
        if r.kind != Kind.OK:
            self.fail(f"{name}: {r.kind}, {r.words}")
        return r

    def read_maps(self) -> None:
        """Read K by three channels of q, and Q by keys that have one channel each."""
        if Q_READ in self.reads or self.c.s.keys > MOST_KEYS:
            return
        c, s = self.c, self.c.s
        a = 2.0 ** round(np.log2(CODE / c.model.scale))  # no format rounds a power of two
        self.channels = tuple(sorted({0, s.dim // 2 + 1, s.dim - 3}))
        one = {f"K read {i}": c.like(c.q, a * np.eye(s.dim)[i]) for i in self.channels}
        self.k_reads = [self.read(name, q, c.k) for name, q in one.items()]
        rng = np.random.default_rng(7)
        blocks = [rng.permutation(s.dim) for _ in range(0, s.keys, s.dim)]
        self.code = np.concatenate(blocks)[: s.keys]
        self.unit_score = float(c.rounded(np.array([a]))[0] * c.model.scale)
        self.read(Q_READ, c.q, c.like(c.k, a * np.eye(s.dim)[self.code]))


def one_score(c: Case, a: float) -> tuple[np.ndarray, np.ndarray]:
    """Return q and k whose scores are one number, a times half the number of channels, scaled."""
    half = 1.0 * (np.arange(c.s.dim) < c.s.dim // 2)
    return c.like(c.q, a * half), c.like(c.k, half)


def inputs(c: Case) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return the q and k of the readings that are always made."""
    s = c.s
    # Pure ramps: a maximum that rises in every tile, and one that lies in the first tile.
    ramp, steep = np.zeros((s.keys, s.dim)), np.zeros_like(c.q)
    ramp[:, 0] = np.linspace(-4, 4, s.keys)
    each = np.random.default_rng(3).uniform(0.75, 1.25, steep.shape[:3])
    steep[..., 0] = c.rounded(each / c.model.scale)
    up, down = ((x, steep, c.like(c.k, y)) for x, y in ((RISING, ramp), (FALLING, -ramp)))
    return [(COUNTS, c.zero, c.k), (RANDOM, c.q, c.k), up, down]
