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


def test_the_symbols_of_every_line_give_its_amount():
    checked = 0
    for each in (*PUBLISHED, *ours()):
        for line in each.lines:
            made = line.exact
            assert evaluated(made.symbols, made.names) == line.amount, (each.title, line.name)
        assert sum(line.amount for line in each.lines) >= each.total
        checked += 1
    assert checked > 300


def test_shared_memory_depends_on_the_depth_of_the_pipeline():
    no_stages = ("append", "merge_states", "prefill_fma", "mla_fma")
    for name in resources.cuda_kernels():
        spec = resources.find(name)
        instance = next(iter(resources.all_instances([name])))
        names = (named for line in spec.smem(instance).lines for named in line.exact.names)
        symbols = {named.symbol for named in names}
        # two have no shared memory; of the CUDA-core kernels, only decode_fma has several stages
        assert ("d" in symbols) == (name not in no_stages), name
