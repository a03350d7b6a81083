"""The calculator has Python's numbers: occupancy, ledgers of any tile, least times of shapes."""

import itertools
import random
import re
from dataclasses import replace
from pathlib import Path

import node
import pytest

from labkernels import hardware
from labkernels.budget.occupancy import occupancy, registers_allowed
from labkernels.budget.roofline import least_time
from labkernels.cli import budget
from labkernels.hardware import GPUS
from labkernels.kernels.choice import missing
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.registry import discover
from labkernels.measure import resources
from labkernels.variant import AttentionVariant
from labkernels.widgets import ledgers

HERE = Path(__file__).parent
SEED, N_BLOCKS, N_SHAPES, N_GRIDS = 20, 2000, 500, 200
LIMITS = {
    "requests": (1, 65536), "tokens": (1, 2**20), "keys": (1, 2**24),
    "q_heads": (1, 1024), "kv_heads": (1, 1024),
}  # fmt: skip
FREE_VALUES = {
    "W": (1, 2, 3, 4, 8, 33),
    "T": (1, 7, 8, 16, 32, 48, 128, 1000),
    "d": (1, 2, 4, 1024),
}


def random_blocks():
    draw = random.Random(SEED)
    gpus = list(GPUS.values())
    for _ in range(N_BLOCKS):
        gpu = draw.choice(gpus)
        block = {
            "threads": draw.randint(1, gpu.threads_per_block_max),
            "registers": draw.randint(1, gpu.registers_per_thread_max),
            "smem_bytes": draw.choice([0, draw.randint(0, gpu.smem_per_block_max_bytes + 2048)]),
        }
        yield gpu, block, draw.randint(1, 16)


def test_occupancy_in_a_page_is_that_of_the_budget(needs_node):
    cases = list(random_blocks())
    given = [{"gpu": ledgers.limits(g), "block": b, "blocks": n} for g, b, n in cases]
    found = node.run(HERE / "scripts" / "budget_of_cases.mjs", given={"blocks": given})["blocks"]
    for (gpu, block, blocks), page in zip(cases, found, strict=True):
        right = occupancy(gpu, **block)
        assert page["blocks"] == right.blocks_per_sm
        assert page["limit"] == right.limit
        by = {"registers": right.by_registers, "shared memory": right.by_smem}
        assert dict(page["by"]) == by | {"warps": right.by_warps, "blocks": right.by_blocks}
        assert page["fraction"] == right.fraction
        allowed = registers_allowed(gpu, threads=block["threads"], blocks_per_sm=blocks)
        assert page["allowed"] == allowed
        for most, name in zip(page["more"], ("registers", "smem_bytes"), strict=True):
            check_one_more(gpu, block, name, most, right)


def check_one_more(gpu, block, name, most, right):
    """Assert that with `most` of a resource one more block fits, and with 1 more it does not."""
    attribute = {"registers": "by_registers", "smem_bytes": "by_smem"}[name]

    def by(amount):
        return getattr(occupancy(gpu, **block | {name: amount}), attribute)

    if most is None:
        assert by(1 if name == "registers" else 0) <= right.blocks_per_sm
    else:
        assert by(most) > right.blocks_per_sm
        assert most == block[name] or by(most + 1) <= right.blocks_per_sm


def test_calculator_has_the_ledgers():
    kernel = discover()["decode_mma"]
    instance = next(iter(kernel.instances(kernel.shape(dtype="fp16", head_dim=128))))
    data = ledgers.data()
    entries = [e for e in data["entries"] if e["kernel"] == "decode_mma"]
    (found,) = [e for e in entries if (e["head_dim"], e["tile"]) == (128, instance.tile.label)]
    assert found["smem"]["total"] == kernel.smem(instance).total
    rows = [data["rows"][place] for place in found["thread"]["rows"]]
    amounts = {row["name"]: row["amount"] for row in rows}
    assert amounts == {line.name: line.amount for line in kernel.registers(instance).lines}


def instances():
    """Yield the first tile of each kernel with free tiles, at its first and its last head_dim."""
    for name in ledgers.FREE_KERNELS:
        kernel = discover()[name]
        for head_dim in {kernel.head_dims[0], kernel.head_dims[-1]}:
            shape = kernel.shape(dtype=ledgers.DTYPE, head_dim=head_dim)
            yield kernel, next(iter(kernel.instances(shape)))


def right_ledgers(kernel, instance, values):
    """Return Python's ledgers with another tile; None where there is no such tile."""
    fields = {ledgers.FREE[symbol]: value for symbol, value in values.items()}
    try:
        other = replace(instance, tile=replace(instance.tile, **fields))
        return kernel.smem(other), kernel.registers(other)
    except ValueError:
        return None


def test_any_tile_has_the_ledgers_of_the_budget_or_names_what_is_wrong(needs_node):
    tiles, right, gpu = [], [], hardware.gpu("h200")
    for kernel, instance in instances():
        entry = ledgers.entry(kernel, instance)
        for choice in itertools.product(*(FREE_VALUES[symbol] for symbol in entry["free"])):
            values = dict(zip(entry["free"], choice, strict=True))
            tiles.append({"entry": entry, "values": values, "gpu": ledgers.limits(gpu)})
            right.append(right_ledgers(kernel, instance, values))
    found = node.run(HERE / "scripts" / "budget_of_cases.mjs", given={"tiles": tiles})["tiles"]
    wrong = set()
    for case, page, python in zip(tiles, found, right, strict=True):
        warps = case["values"].get("W", 1)
        threads = case["entry"]["threads"] * warps // case["entry"]["values"].get("W", 1)
        if threads > gpu.threads_per_block_max:
            assert page["symbol"] == "W"
            assert page["words"].startswith(f"{warps} warps are {threads:,} threads")
        elif python is None:
            assert "is not a multiple of" in page["words"]
            wrong.add(page["symbol"])
        else:
            for mine, ledger in zip((page["smem"], page["thread"]), python, strict=True):
                amounts = [row["amount"] for row in mine["rows"]]
                assert amounts == [line.amount for line in ledger.lines]
                assert mine["total"] == ledger.total
            assert page["threads"] == threads
    assert wrong == {"W", "T"}  # the symbol that is to blame


def test_kernel_and_gpu_that_cannot_run_are_refused_with_the_reason():
    lacks = ledgers.data()["lacks"]
    for kernel, reasons in lacks.items():
        for gpu in GPUS.values():
            assert reasons.get(gpu.name) == missing(discover()[kernel], gpu)
    assert lacks["prefill_wgmma"][hardware.gpu("a100").name] == "needs sm_90a"
    assert lacks["decode_fma"] == {}


def random_shape(draw):
    kv_heads = draw.choice((1, 2, 8))
    return {
        "requests": draw.randint(1, 64),
        "tokens": draw.choice((1, 1, draw.randint(2, 4096))),
        "keys": draw.randint(1, 100_000),
        "q_heads": kv_heads * draw.choice((1, 3, 4, 16)),
        "kv_heads": kv_heads,
        "head_dim": draw.choice((64, 128, 256)),
        "window": draw.choice((None, 0, draw.randint(1, 8192))),
        "soft_cap": draw.random() < 0.5,
        "sinks": draw.random() < 0.5,
    }


def workload_of(shape):
    heads = (shape["q_heads"], shape["kv_heads"], shape["head_dim"])
    keys = (shape["keys"],) * shape["requests"]
    cap = 50.0 if shape["soft_cap"] else None
    of = {"window_left": shape["window"], "soft_cap": cap, "sinks": shape["sinks"]}
    variant = AttentionVariant(shape["tokens"] > 1, **of)
    if shape["tokens"] == 1:
        return Decode(keys, *heads, variant=variant)
    return Prefill((shape["tokens"],) * shape["requests"], keys, *heads, variant=variant)


def test_least_time_in_a_page_is_that_of_the_budget(needs_node):
    draw = random.Random(SEED)
    cases = []
    for shape in (random_shape(draw) for _ in range(N_SHAPES)):
        rows = 16 if shape["tokens"] == 1 else None
        how = {"tensor_cores": draw.random() < 0.5, "mma_rows": rows}
        cases.append((shape, draw.choice(list(GPUS.values())), how))
    given = [{"shape": s, "gpu": ledgers.limits(gpu), "how": how} for s, gpu, how in cases]
    found = node.run(HERE / "scripts" / "budget_of_cases.mjs", given={"shapes": given})["shapes"]
    for (shape, gpu, how), page in zip(cases, found, strict=True):
        workload = workload_of(shape)
        work = {name: getattr(workload, name) for name in ("bytes", "flops", "exps", "group")}
        assert page["work"] == work
        right = least_time(workload, gpu, **how)
        assert page["least"]["bound"] == right.bound
        assert page["least"]["time"] == pytest.approx(right.time_s, rel=1e-14)


def grid_cases():
    """Yield kernel, shape, the preferred instance and its workload, small enough to plan here."""
    draw, names = random.Random(SEED), ledgers.data()["varied"]
    for _ in range(N_GRIDS):
        kernel = discover()[draw.choice([name for name in names if "backward" not in name])]
        decode = kernel.operation == "decode"
        most = {"requests": draw.randint(1, 16), "keys": draw.choice((1, 70, 1000, 9000, 70_000))}
        shape = random_shape(draw) | most | {"tokens": 1 if decode else draw.randint(2, 3000)}
        work = replace(workload_of(shape), dtype=ledgers.DTYPE)
        if not decode and "paged" in kernel.layouts:
            work = replace(work, page_size=16)
        of = {"dtype": ledgers.DTYPE, "head_dim": shape["head_dim"], "group": work.group}
        shaped = kernel.shape(**of, variant=work.variant)
        yield kernel, shape, next(iter(kernel.instances(shaped))), work


def test_grid_and_steps_in_a_page_are_those_of_the_plan(needs_node):
    cases, gpu = list(grid_cases()), hardware.gpu("h200")
    known = {name: ledgers.data()[name] for name in ("varied", "whole_tokens", "decode_rows")}
    given = [
        {"shape": shape, "gpu": ledgers.limits(gpu), "known": known}
        | {"entry": ledgers.entry(kernel, instance) | {"compiled": {}}}
        for kernel, shape, instance, _ in cases
    ]
    found = node.run(HERE / "scripts" / "budget_of_cases.mjs", given={"grids": given})["grids"]
    for (kernel, shape, instance, work), page in zip(cases, found, strict=True):
        plan = budget.plan(instance, work, gpu)
        grid = {"blocks": plan.blocks, "splits": plan.splits}
        grid["steps"] = int(budget.steps(instance, work))
        assert page["grid"] == grid, (kernel.name, shape)
        assert page["rows"][0][2] == f"{plan.blocks:,}"


def test_what_was_compiled_for_a_variant_is_that_of_the_recording(needs_node):
    data, gpu = ledgers.data(), hardware.gpu("h200")
    entries = {(e["kernel"], e["head_dim"], e["tile"]): e for e in data["entries"]}
    for instance in resources.with_variants():
        row = resources.recorded(instance, arch="sm_90a")
        entry = entries[instance.kernel, instance.head_dim, instance.tile.label]
        kept = entry["compiled"]["+".join(instance.features)]
        assert kept == [row["registers"], row["spill_bytes"]]
    assert set(data["varied"]) == {i.kernel for i in resources.with_variants()}
    entry = entries["decode_mma", 64, "4x16x3x4"]
    of = {
        name: [data["rows"][place] for place in entry[name]["rows"]] for name in ("smem", "thread")
    }
    entry = entry | {name: entry[name] | {"rows": rows} for name, rows in of.items()}
    shape = {"requests": 64, "tokens": 1, "keys": 8192, "q_heads": 64, "kv_heads": 8}
    shape |= {"head_dim": 64, "window": 127, "soft_cap": False, "sinks": True}
    case = {"shape": shape, "entry": entry, "gpu": ledgers.limits(gpu), "known": data}
    (page,) = node.run(HERE / "scripts" / "budget_of_cases.mjs", given={"grids": [case]})["grids"]
    rows = {name: numbers for name, *numbers in page["rows"]}
    assert rows["steps of 16 keys"] == ["262,144", "4,096"]
    both = [entry["compiled"][name][0] for name in ("", "window+sinks")]
    assert rows["registers, compiled"] == [str(n) for n in both]


def test_extreme_shapes_give_plain_positive_numbers(needs_node):
    corners = itertools.product(*({low, high} for low, high in LIMITS.values()))
    shapes = [dict(zip(LIMITS, corner, strict=True)) for corner in corners]
    plain = {"head_dim": 128, "window": None, "soft_cap": False, "sinks": False}
    shapes = [s | plain for s in shapes if s["q_heads"] % s["kv_heads"] == 0]
    entries = [
        {"operation": operation, "rows": rows, "tensor_cores": cores}
        for operation, rows in (("decode", 1), ("decode", 16), ("prefill", 1))
        for cores in (False, True)
    ]
    given = [
        {"shape": shape, "entry": entry, "gpu": ledgers.limits(gpu)}
        for shape, entry, gpu in itertools.product(shapes, entries, GPUS.values())
    ]
    found = node.run(HERE / "scripts" / "budget_of_cases.mjs", given={"extremes": given})[
        "extremes"
    ]
    for words, case in zip(found, given, strict=True):
        numbers = re.findall(r"(?:least|has|do) (\S+)", words)
        assert len(numbers) == 3, words
        for number in numbers:
            assert re.fullmatch(r"[\d,]*\.?\d+(e\+\d+)?", number), words
            assert float(number.replace(",", "")) > 0, (words, case)
            assert "e" not in number or float(number) >= 1e15, words
