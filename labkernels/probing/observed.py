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
from labkernels.probing.reading import OK, Reading
from labkernels.probing.report import Datasheet, Defect, defect

SAME, ONE_SCORE, MIXED = "q = 0", "one score", "random scores"
COUNTS, RANDOM, RISING, FALLING, Q_READ = "q = 0", "random", "rising", "falling", "Q read"
MOST_KEYS = 600  # reading K and Q of more keys would take too many calls
CODE = 1.3  # natural score of one unit of a channel, in the readings of K and Q


class Observed:
    """What the experiments showed of a case.

    same: for each kind of scores, out / row over the sum of weights, where that is wrong, and out
    [B, H, M, Dv]. share, own: how much of each head's V a row has, and should have
    [B, H, M, B, Hkv]. reads: the readings by name.
    """

    def __init__(self, case: Case, sheet: Datasheet):
        self.c, self.sheet = case, sheet
        self.reads: dict[str, Reading] = {}
        self.same: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self.failed: list[str] = []
        self.empty: Defect | None = None
        self.maps: tuple = ()

    def fail(self, name: str) -> None:
        """Note that an experiment failed."""
        self.failed.append(name)
        self.sheet.failed.append(f"{self.c.label}: {name}")

    def run(self, deep: bool = False) -> None:
        """Run all experiments; K and Q are read where anything failed, or with deep."""
        self.same_v()
        self.head_map()
        for name, q, k in inputs(self.c):
            self.read(name, q, k)
        if (self.failed or deep) and self.c.s.keys <= MOST_KEYS:
            self.read_maps()

    # -- the same V everywhere ---------------------------------------------------------------------

    def same_v(self) -> None:
        """V's row everywhere: with q = 0, one score for all keys, and random scores."""
        c = self.c
        half = np.zeros(c.s.dim)
        half[: c.s.dim // 2] = 1.0
        flat = (c.q_like(2 * half), c.k_like(half))
        self.flat_score = float(c.scores(*flat)[c.seen].max(initial=-np.inf))
        for name, q, k in ((SAME, c.zero, c.k), (ONE_SCORE, *flat), (MIXED, c.q, c.k)):
            w, _ = c.weights(c.scores(q, k))
            out = c.call(q, k, c.v_like(c.row))
            with np.errstate(all="ignore"):
                total = np.where(w.sum(-1) == 0, 1, w.sum(-1))
                ratio = out / c.row / total[..., None]
                wrong = ~(np.abs(ratio - 1) <= c.tol) & c.seen_any[..., None]
            self.same[name] = ratio, wrong, out
            if wrong.any():
                self.fail(f"same V, {name}")
        empty = ~c.seen_any
        out = self.same[MIXED][2]
        if empty.any() and not (out[empty] == 0).all():
            self.fail("rows without keys")
            words = f"the first is {out[empty].flat[0]:.3g}"
            self.empty = defect(STORE, "rows without keys are not 0", words, empty)

    # -- whose V -----------------------------------------------------------------------------------

    def head_map(self) -> None:
        """V constant for each request and KV head, with q = 0."""
        c, s = self.c, self.c.s
        n = s.batch * s.kv_heads
        signs = c.rng.choice([-1.0, 1.0], (n, s.dim_v))
        ids = c.rounded(signs * c.rng.uniform(0.5, 2, (n, s.dim_v)))
        v = np.broadcast_to(ids.reshape(s.batch, s.kv_heads, 1, s.dim_v), c.v.shape)
        out = c.call(c.zero, c.k, v)
        w, _ = c.weights(c.scores(c.zero, c.k))
        found = np.linalg.lstsq(ids.T, np.nan_to_num(out.reshape(-1, s.dim_v)).T, rcond=None)[0]
        share = found.T.reshape(*out.shape[:3], s.batch, s.kv_heads)
        share = share / np.maximum(w.sum(-1), 1e-9)[..., None, None]
        own = np.zeros_like(share)
        for b in range(s.batch):
            for h in range(s.q_heads):
                own[b, h, :, b, h // c.group] = c.seen_any[b, h]
        self.share, self.own = share, own
        self.ids, self.id_out = ids.reshape(s.batch, s.kv_heads, -1), out
        wrong = np.abs(share - own) > np.where(own > 0, 4 * c.tol, c.u + 3e-4)
        self.map_wrong = wrong.any((-1, -2))
        if self.map_wrong.any():
            self.fail("head map")

    # -- readings ----------------------------------------------------------------------------------

    def read(self, name: str, q: np.ndarray, k: np.ndarray) -> Reading:
        """Read the weights of q and k (once), and compare them."""
        if name not in self.c.raw:
            self.c.raw[name] = self.c.read(q, k)
        r = Reading(name, self.c, self.c.raw[name], self.c.scores(q, k))
        self.reads[name] = r
        if r.kind != OK:
            self.fail(f"{name}: {r.kind}, {r.words}")
        return r

    def read_maps(self) -> None:
        """Read K by three channels of q, and Q by keys that have one channel each."""
        if Q_READ in self.reads or self.c.s.keys > MOST_KEYS:
            return
        c, s = self.c, self.c.s
        a = 2.0 ** round(np.log2(CODE / c.model.scale))  # no format rounds a power of two
        self.channels = tuple(sorted({0, s.dim // 2 + 1, s.dim - 3}))
        for channel in self.channels:
            one = np.zeros(s.dim)
            one[channel] = a
            self.read(f"K read {channel}", c.q_like(one), c.k)
        rng = np.random.default_rng(7)
        blocks = [rng.permutation(s.dim) for _ in range(-(-s.keys // s.dim))]
        self.code = np.concatenate(blocks)[: s.keys]
        basis = np.zeros((s.keys, s.dim))
        basis[np.arange(s.keys), self.code] = a
        self.unit_score = float(c.rounded(np.array([a]))[0] * c.model.scale)
        self.read(Q_READ, c.q, c.k_like(basis))

    @property
    def k_reads(self) -> list[Reading]:
        """The readings of K, one for each channel."""
        return [self.reads[f"K read {channel}"] for channel in self.channels]

    def any_bad(self, *names: str) -> bool:
        """Whether one of these readings is not right."""
        return any(self.reads[x].kind != OK for x in names if x in self.reads)


def inputs(c: Case) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return the q and k of the readings that are always made."""
    s = c.s
    # Pure ramps: a maximum that rises in every tile, and one that lies in the first tile.
    ramp, steep = np.zeros((s.keys, s.dim)), np.zeros_like(c.q)
    ramp[:, 0] = np.linspace(-4, 4, s.keys)
    each = np.random.default_rng(3).uniform(0.75, 1.25, steep.shape[:3])
    steep[..., 0] = c.rounded(each / c.model.scale)
    up, down = c.k_like(ramp), c.k_like(-ramp)
    return [
        (COUNTS, c.zero, c.k),
        (RANDOM, c.q, c.k),
        (RISING, steep, up),
        (FALLING, steep, down),
    ]
