"""Without a GPU, the Triton kernels compile with tensor cores on and off, and nothing spills.

What is compiled is what a step launches: its arguments are recorded in place of a launch.
"""

from dataclasses import replace
from itertools import islice
from types import MappingProxyType

import pytest
import torch

from labkernels import hardware
from labkernels.cuda.compiler import sass, triton
from labkernels.cuda.compiler.triton import TritonVariant, compile_triton
from labkernels.kernels.caches.paged import QuantizedKV
from labkernels.policy import CUDA_CORES, TENSOR_CORES
from labkernels.variant import FULL, UNMASKED, AttentionVariant
from tests.kernels.contract import SPECS
from tests.kernels.trials import CASES
from tests.kernels.variants.cases import combined, varied

KERNELS = [name for name, spec in SPECS.items() if spec.language == "triton"]
# The steps are of fp16, for which the interpreter's arguments are the GPU's; bf16 is compiled.
POINTERS = {torch.float16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32"}
POINTERS |= {torch.float8_e4m3fn: "*fp8e4nv", torch.float8_e5m2: "*fp8e5"}
POINTERS |= {torch.uint8: "*u8", torch.int64: "*i64"}

pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.skipif(triton.available() is not None, reason=str(triton.available())),
]


@pytest.fixture
def launches(monkeypatch):
    """Return the list of the launches of Triton kernels, none of which runs."""
    from triton import language as triton_language
    from triton.runtime import interpreter

    found = []

    def recorder(function, grid):
        def launch(*arguments, **constants):
            given = dict(zip(function.arg_names, arguments, strict=False))
            annotated = function.fn.__annotations__
            fixed = [name for name in given if annotated.get(name) is triton_language.constexpr]
            named = [name for name in constants if name in function.arg_names]
            read = [name for name in named if annotated.get(name) is not triton_language.constexpr]
            constants |= {name: given.pop(name) for name in fixed}
            given |= {name: constants.pop(name) for name in read}
            found.append((function.fn.__name__, given, constants))

        return launch

    monkeypatch.setattr(interpreter.InterpretedFunction, "__getitem__", recorder)
    return found


def type_of(name, value):
    if torch.is_tensor(value):
        return POINTERS[value.dtype]
    wide = name == "page_inverse" or (isinstance(value, int) and value >= 2**31)
    return "fp32" if isinstance(value, float) else "i64" if wide else "i32"


def variant(spec, launch, tile, gpu):
    """Return what a launch would compile on a GPU."""
    name, given, constants = launch
    fixed = {key: value for key, value in given.items() if value is None}
    types = {key: type_of(key, value) for key, value in given.items() if value is not None}
    whole = [key for key, x in given.items() if type(x) is int and x > 0 and x % 16 == 0]
    return TritonVariant(
        source=spec.folder / "kernel.py",
        function=name,
        types=types,
        constants={**fixed, **constants},
        arch=hardware.gpu(gpu).compile_arch,
        warps=tile.warps,
        stages=tile.stages,
        multiples_of_16=tuple(whole),
    )


def wanted(spec, policy, launches, attention=MappingProxyType({})):
    """Yield the GPU, the tile and the variants of each head_dim, tile and layout.

    attention: the variant of attention.
    """
    one = {"decode": ((64,),), "mla": ((2,), (64,))}.get(spec.operation, ((64,), (64,)))
    for head_dim in (*spec.head_dims, *spec.padded_dims):
        how = {"heads": 16} if spec.operation == "mla" else {"head_dim": head_dim, "group": 4}
        asked = AttentionVariant(mask=True, reach=1) if "mask" in attention else FULL
        tiles = spec.tiles(spec.shape(head_dim=head_dim, group=4, rows=256, variant=asked), policy)
        for i, (tile, layout) in enumerate((tile, x) for tile in tiles for x in spec.layouts):
            if spec.operation == "prefill":
                how["page_size"], how["layout"] = (
                    (16, "nhd") if layout == "paged" else (None, "thd")
                )
            case = CASES[spec.operation](*one, dtype="fp16", **how)
            case = varied(case, **attention) if attention else case
            cut = {} if spec.operation == "backward" else {"keys_per_split": (32, 64)[i % 2]}
            for gpu in ("h200", "a10") if i == 0 and spec.operation == "decode" else ("h200",):
                label = tile.label if gpu == "h200" else None
                launches.clear()
                step = case.step(spec.name, policy=policy, tile=label, target=gpu, **cut)
                step.run()
                chosen = next(t for t in tiles if t.label == step.plan.tile)
                ours = [each for each in launches if "KEYS" in each[2]]
                yield from ((gpu, chosen, variant(spec, each, chosen, gpu)) for each in ours)


@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["first tile", "every tile"]
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_tensor_cores_are_in_the_machine_code_or_not(kernel, every, launches):
    asked = []
    for policy in (TENSOR_CORES, CUDA_CORES):
        asked += islice(wanted(SPECS[kernel], policy, launches), None if every else 1)
    assert len(asked) > 1
    compiled = compile_triton([made for *_, made in asked])  # in one process
    for (gpu, tile, made), found in zip(asked, compiled, strict=True):
        where = f"{gpu}, tile {tile.label}, {made.constants}"
        mix = sass.instruction_mix(found.cubin)
        on = made.constants["TENSOR_CORES"]
        assert any("MMA" in name for name in mix) == on, where
        assert found.stack_bytes == 0, f"{where}: spills"
        assert found.smem_bytes <= hardware.gpu(gpu).smem_per_block_max_bytes, where
        if not on:
            # S and O: an FMA for each row, key and channel
            rows, channels = made.constants["ROWS"], made.constants["D"]
            assert mix["FFMA"] >= 2 * rows * tile.keys * channels // tile.threads, where


@pytest.mark.parametrize(
    "attention", [*combined(UNMASKED)[::7], {**combined(UNMASKED)[-1], "bias": True}], ids=str
)
@pytest.mark.parametrize("kernel", [name for name in KERNELS if SPECS[name].features])
@pytest.mark.one_in(8)
def test_variants_compile_without_spills(kernel, attention, launches):
    asked = []
    for policy in (TENSOR_CORES, CUDA_CORES):
        asked += islice(wanted(SPECS[kernel], policy, launches, attention), 1)
    for (*_, made), found in zip(asked, compile_triton([x[-1] for x in asked]), strict=True):
        mix = sass.instruction_mix(found.cubin)
        assert any("MMA" in name for name in mix) == made.constants["TENSOR_CORES"]
        assert found.stack_bytes == 0, f"{made.constants}: spills"


def test_a_mask_and_a_bias_fit_with_every_head_dim(launches):
    """With head_dim 256, Triton's copies ahead would need more shared memory than there is."""
    spec = SPECS["triton_prefill"]
    every = wanted(spec, TENSOR_CORES, launches, {"mask": 0.5, "bias": True})
    firsts = {made.constants["D_V"]: made for *_, made in reversed(list(every))}
    assert max(firsts) == max(spec.head_dims)
    for head_dim, found in zip(firsts, compile_triton(list(firsts.values())), strict=True):
        assert found.smem_bytes <= hardware.gpu("h200").smem_per_block_max_bytes, head_dim


def test_what_triton_refuses_is_told_in_its_words(launches):
    _, _, made = next(wanted(SPECS["triton_decode"], TENSOR_CORES, launches))
    with pytest.raises(RuntimeError, match="no_such_kernel"):
        compile_triton([replace(made, function="no_such_kernel")])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("blocks", [None, 4], ids=str)
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_cache_of_8_bits_compiles_without_spills(kind, blocks, launches):
    spec, case = SPECS["triton_decode"], CASES["decode"]((64,), head_dim=128)
    k, v = (x.to(kind) for x in (case.cache.k, case.cache.v))
    scales = torch.ones(2, *((len(k), blocks) if blocks else ()), case.cache.kv_heads)
    cache = QuantizedKV(k, v, case.cache.page_table, case.cache.kv_len, *scales)
    asked = {}
    for policy in (TENSOR_CORES, CUDA_CORES):
        launches.clear()
        kernel = spec.changed(block_dtypes=spec.dtypes)  # fp16 is compiled as bf16
        step = case.changed(cache=cache).step(kernel, policy=policy, target="h200")
        step.run()
        (tile, *_) = spec.tiles(spec.shape(head_dim=128, group=4), policy)
        asked[policy] = variant(spec, launches[0], tile, "h200")
    for policy, found in zip(asked, compile_triton(list(asked.values())), strict=True):
        mix = sass.instruction_mix(found.cubin)
        assert any("MMA" in name for name in mix) == (policy == TENSOR_CORES)
        assert found.stack_bytes == 0, f"{policy.label}: spills"
