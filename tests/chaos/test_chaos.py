"""Faults injected into the compile cache, the records and the book's build cause no wrong result
without a message, no traceback, and no file that stays unreadable.

The short form is a part of `make test`. The long form is `make chaos`: 2,940 injections, with
those of test_steps.py.
"""

import contextlib
import hashlib
import io
import random
import sys
from functools import partial
from itertools import chain, permutations

import pytest

from labkernels.cuda.compiler import cache
from labkernels.cuda.compiler.cache import CacheError
from labkernels.records import datapackage, schema, store
from tests.book import stand_in
from tests.chaos.faults import At, damage, denial, ended, in_child, killed_child, plant

SHORT, LONG = 15, 60  # injections per test; the records take four times as many
LONG_SEEDS = [pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 9)]


def length_of(request):
    return LONG if request.node.get_closest_marker("long") else SHORT


@pytest.fixture
def count(request):
    return length_of(request)


NAMES = [f"kernel-{i}" for i in range(6)]


def content(name):
    return hashlib.sha256(name.encode()).digest() * (64 + int(name[-1]))


def is_right(name):
    return cache.entry(name, lambda work: content(name)).content == content(name)


@pytest.mark.parametrize("seed", [0, *LONG_SEEDS])
def test_the_compile_cache(seed, count, tally, tmp_path, monkeypatch):
    folder, rng = tmp_path / "cache", random.Random(seed)
    monkeypatch.setenv("LABKERNELS_CACHE", str(folder))

    def use_all():
        for name in NAMES:
            is_right(name)

    def harass():
        """Use, clear and damage the cache; any wrong result ends with exit code 1."""
        mine = random.Random(rng.random())
        for _ in range(6):
            name = mine.choice(NAMES)
            if mine.random() < 0.2:
                cache.clear()
            elif mine.random() < 0.3:
                with contextlib.suppress(FileNotFoundError):
                    damage(folder / "entries" / name, mine)
            else:
                assert is_right(name)

    for _ in range(count):
        use_all()
        name, n = rng.choice(NAMES), rng.randint(1, 40)
        path = folder / "entries" / name
        how = rng.choice(("damage", "plant", "swap", "kill", "deny", "race"))
        if how == "damage":
            how = damage(path, rng)
        elif how == "plant":
            how = plant(path, rng, tmp_path / f"moved {rng.random()}")
        elif how == "swap":
            path.write_bytes((folder / "entries" / rng.choice(NAMES)).read_bytes())
        elif how == "kill":
            cache.clear()
            killed_child(rng, use_all, folder, "compiler/cache.py", 400)
        elif how == "race":
            if rng.random() < 0.5:
                cache.clear()
            children = [in_child(harass) for _ in range(4)]
            assert [ended(child) for child in children] == [0] * 4
        if how == "deny":
            path.unlink()
            with At(folder, n, denial(rng)):
                tally.judge(how, partial(is_right, name), CacheError, "LABKERNELS_CACHE")
        else:
            tally.judge(how, partial(is_right, name), CacheError, "LABKERNELS_CACHE")
        tally.require(how, lambda: all(map(is_right, NAMES)))
        tally.require(how, lambda: not cache.contents().damaged)
    cache.entry("last", lambda work: b"")  # the next build removes what killed builds left
    assert cache.contents().leftovers == 0


ROW = {
    "started_utc": "2026-12-01T09:30:00Z",
    "kernel": "decode_mma",
    "tensor_cores": "on",
    "dtype": "bf16",
    "sample": 0,
    "head": 0,
    "rmse": 1.25e-3,
    "bias": -2.5e-5,
    "max_abs": 0.0625,
}


FILES_OF_RECORDS = ("records/files.py", "records/store.py")


@pytest.mark.parametrize("seed", [0, *LONG_SEEDS])
def test_the_records(seed, count, tally, tmp_path):
    folder, rng = tmp_path / "data", random.Random(seed)
    path = folder / "performance" / "run.csv"

    def batch(number):
        return [{**ROW, "sample": number, "max_abs": rng.random()} for _ in range(7)]

    def append(rows):
        return store.append(path, rows, schema.TABLES["decode_accuracy"])

    def rows():
        return store.read(path, described=False)

    good = batch(0)
    append(good)
    datapackage.write(folder)
    for number in range(1, 4 * count + 1):  # these are quick
        more, n = batch(number), rng.randint(1, 12)
        how = rng.choice(("damage", "description", "kill", "deny", "race"))
        if how in ("damage", "description"):
            target = path if how == "damage" else folder / "datapackage.json"
            before = target.read_bytes()
            how += f": {damage(target, rng)}"
            refusals = (ValueError, FileNotFoundError)
            tally.judge(how, partial(is_one_of, partial(store.read, path), good), refusals)
            target.write_bytes(before)
        elif how == "kill":
            killed_child(rng, partial(append, more), folder, rng.choice(FILES_OF_RECORDS), 60)
            tally.judge(how, partial(is_one_of, rows, good, good + more), ())
        elif how == "deny":
            with At(folder, n, denial(rng)):
                tally.judge(how, partial(is_one_of, partial(append, more), 7), (OSError,))
            tally.require(how, partial(is_one_of, rows, good, good + more))
        else:
            batches = [batch(number * 10 + i) for i in range(3)]
            children = [in_child(partial(append, each)) for each in batches]
            assert [ended(child) for child in children] == [0] * 3
            orders = [good + list(chain(*order)) for order in permutations(batches)]
            tally.judge(how, partial(is_one_of, rows, *orders), ())
        good = rows()
        datapackage.write(folder)
        tally.require(how, partial(is_one_of, partial(store.read, path), good))
        files = {found.name for found in path.parent.iterdir()}
        assert files <= {".lock", "run.csv", "run.csv.part"}


def is_one_of(what, *allowed):
    return what() in allowed


@pytest.mark.parametrize("seed", [0, *LONG_SEEDS])
def test_the_books_build(seed, count, tally, tmp_path, monkeypatch):
    build, rng = stand_in.empty_book(tmp_path, monkeypatch), random.Random(seed)
    monkeypatch.setattr(sys, "argv", ["build.py"])
    intro = tmp_path / "book" / "intro.md"

    def pages_are(*allowed):
        texts = {(build.SITE / page).read_text() for page in stand_in.PAGES}
        return len(texts) == 1 and texts <= {*allowed}

    def is_built(fault=None):
        """Build, perhaps with a fault; return whether it says so and its pages are new."""
        with contextlib.redirect_stdout(io.StringIO()) as out, fault or contextlib.nullcontext():
            build.main()
        return "Open" in out.getvalue() and pages_are(intro.read_text())

    for number in range(count):
        tally.require("at first", is_built)
        n = rng.randint(1, 90)
        how = rng.choice(("damage", "lost", "kill", "deny", "race", "edit and deny"))
        if how == "damage":
            files = [*build.SITE.rglob("*.html"), *build.EXECUTED.iterdir()]
            files += [build.BUILD / "site.key"]
            how += f": {damage(rng.choice(files), rng)}"
        elif how == "lost":
            build.shutil.rmtree(rng.choice((build.SITE, build.EXECUTED, build.STAGE)))
        elif how == "kill":
            intro.write_text(f"# {number}\n")
            killed_child(rng, is_built, tmp_path, "book/build.py", 300)
        elif how == "race":
            intro.write_text(f"# {number}\n")
            children = [in_child(lambda: tally.require("race", is_built)) for _ in range(2)]
            assert [ended(child) for child in children] == [0, 0]
        elif how == "edit and deny":
            intro.write_text(f"# {number}\n")
        if "deny" in how:
            old = build.SITE / "index.html"
            shown = old.read_text()
            fault = At(tmp_path, n, denial(rng))
            tally.judge(how, partial(is_built, fault), SystemExit, "The book was not built")
            if old.exists():
                tally.require(how, partial(pages_are, shown, intro.read_text()))
        else:
            tally.judge(how, is_built, SystemExit, "The book was not built")
        tally.require(how, is_built)
