import pytest

from labkernels import hardware
from labkernels.budget.occupancy import blocks_equation, occupancy
from labkernels.budget.published import flash_attention_2, flashinfer_decode, flashinfer_prefill
from labkernels.measure import resources
from tests.budget.test_quantity import evaluated

PUBLISHED = (
    flashinfer_decode(head_dim=128, group=4),
    flashinfer_prefill(cta_q=16, cta_kv=128, head_dim=128, warps_kv=4),
    flash_attention_2(block_m=128, block_n=64, head_dim=128),
)


def ours():
    """Yield a ledger of each kind for each tile of every kernel."""
    for instance in resources.all_instances():
        if instance.dtype == "bf16":
            spec = resources.find(instance.kernel)
            yield from (spec.smem(instance), spec.registers(instance))


def test_every_ledger_as_an_equation_gives_its_total():
    checked = 0
    for each in (*PUBLISHED, *ours()):
        made = each.equation()
        assert evaluated(made.symbols, made.names) == each.total == made.value, each.title
        assert evaluated(made.numbers) == each.total, each.title
        assert sum(row[each.unit] for row in each.rows()) >= each.total
        checked += 1
    assert checked > 300


def test_shared_memory_depends_on_the_depth_of_the_pipeline():
    no_stages = ("append", "merge_states", "prefill_fma", "mla_fma")
    for name in resources.cuda_kernels():
        spec = resources.find(name)
        instance = next(iter(resources.all_instances([name])))
        symbols = {named.symbol for named in spec.smem(instance).equation().names}
        # two have no shared memory; of the CUDA-core kernels, only decode_fma has several stages
        assert ("d" in symbols) == (name not in no_stages), name


@pytest.mark.parametrize("key", hardware.GPUS)
@pytest.mark.parametrize("threads", [32, 96, 128, 384, 1024])
@pytest.mark.parametrize(("registers_", "smem_bytes"), [(33, 0), (64, 9_216), (40, 69_632)])
def test_blocks_per_sm_as_an_equation_are_those_of_the_occupancy(
    key, threads, registers_, smem_bytes
):
    sizes = {"threads": threads, "registers": registers_, "smem_bytes": smem_bytes}
    gpu = hardware.gpu(key)
    made = blocks_equation(gpu, **sizes)
    assert made.value == occupancy(gpu, **sizes).blocks_per_sm
    assert evaluated(made.symbols, made.names) == evaluated(made.numbers) == made.value
    with pytest.raises(ValueError, match=r"occupancy.blocks_per_sm = 0, allowed: an integer >= 1"):
        blocks_equation(gpu, **{**sizes, "smem_bytes": 300_000})


def test_the_display_has_symbols_numbers_the_value_and_what_another_says():
    made = PUBLISHED[2].equation().with_beside(65_536, "by the compiler")
    first, *rest = made.latex.splitlines()[1:-1]
    assert first == r"M_\text{smem} &= R \, D \, b + T \, D \, b + T \, D \, b \\"
    assert rest[0].startswith(r" &= 128 \times 128 \times 2 + ")
    assert rest[-2] == r" &= 65{,}536\text{ B} \\"
    assert rest[-1] == r" &\phantom{=}\; 65{,}536\text{ B} \text{ by the compiler}"
    assert made.legend()[0] == {"symbol": "R", "value": 128, "meaning": "query rows"}
