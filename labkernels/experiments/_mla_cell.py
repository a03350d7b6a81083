"""One workload of the MLA experiment: prepare, time in turns, then check what was timed."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from labkernels.experiments._prefill_cell import (
    CellResult,
    Contender,
    Measured,
    Ready,
    bound_words,
    spoil,
)
from labkernels.kernels import spec as specs
from labkernels.kernels.spec import KernelSpec, NumericPolicy
from labkernels.measure import device, mla_peers, timing
from labkernels.measure.accuracy import PEER_CHAIN, Chain
from labkernels.measure.mla_cases import MlaCase, mla_case
from labkernels.measure.mla_judge import MlaJudge
from labkernels.measure.peers import Refused, one_line
from labkernels.workload import MlaDecode

SLOWEST_FLOPS = 1e11  # a workload of more is not worth the time of kernels without tensor cores


def contenders(missing: Mapping[str, str]) -> dict[str, Contender]:
    """Return ours and the peers, but for backends that cannot run here, which `missing` names."""
    ours = [_ours(spec, policy) for spec in specs.discover().values() for policy in _ways(spec)]
    peers = [
        Contender(peer.name, peer.backend, peer.tensor_cores, "", PEER_CHAIN, _peer(peer))
        for peer in mla_peers.PEERS.values()
        if peer.backend not in missing and peer.available() is None
    ]
    return {item.name: item for item in (*ours, *peers)}


def _ways(spec: KernelSpec) -> list[NumericPolicy]:
    """The first policy with tensor cores and the first without, where there are such."""
    if spec.family != "mla":
        return []
    first: dict[bool, NumericPolicy] = {}
    for policy in spec.policies:
        if policy.exp2 != "library":
            first.setdefault(spec.uses_tensor_cores(policy), policy)
    return list(first.values())


def measure_cell(
    workload: MlaDecode, chosen: Mapping[str, Contender], *, repeats: int, seed: int
) -> CellResult:
    """Measure the contenders on one workload, on the current CUDA device."""
    result, case = CellResult(), mla_case(workload, seed=seed)
    ready = [prepare(item, case, result) for item in chosen.values()]
    done = {item.contender.name: item for item in ready if item is not None}
    with device.sampling() as reading:
        times = timing.time_interleaved(
            {name: timing.capture(item.run).replay for name, item in done.items()}, repeats=repeats
        )
    result.sensors = reading.sensors
    judge = MlaJudge(case)
    for name, item in done.items():
        spoil(item)
        item.run()
        errors = judge(item.out(), item.lse2, item.contender.chain)
        if errors.passed:
            result.measured.append(Measured(item, times[name], errors))
        else:
            result.words.append((item.contender, "failed", bound_words(errors)))
    return result


def prepare(contender: Contender, case: MlaCase, result: CellResult) -> Ready | None:
    """A contender made ready, or None and its words in the result."""
    if contender.tensor_cores == "off" and case.workload.flops > SLOWEST_FLOPS:
        return None
    try:
        ready = contender.prepare(case)
    except (Refused, ValueError) as error:
        result.words.append((contender, "refused", one_line(error)))
        return None
    return replace(ready, contender=contender)


def _ours(spec: KernelSpec, policy: NumericPolicy) -> Contender:
    on = spec.uses_tensor_cores(policy)
    word = "on" if on else "off"
    contender = Contender(
        f"{spec.name} {word}" if len(_ways(spec)) > 1 else spec.name,
        spec.language,
        word,
        policy.label,
        Chain(on, policy.denominator, policy.exp2),
        lambda case: None,
    )

    def prepare(case: MlaCase) -> Ready:
        from labkernels import ops

        step = ops.mla_decode_step(
            case.q_nope,
            case.q_pe,
            case.cache,
            case.cu_seqlens_q,
            causal=case.workload.causal,
            kernel=spec.name,
            policy=policy,
            scale=case.scale,
        )
        step.run()  # Triton compiles at the first run, which no graph may hold
        return Ready(contender, case, step.run, lambda: step.out, step.lse2, step.plan)

    return replace(contender, prepare=prepare)


def _peer(peer) -> Callable[[MlaCase], Ready]:
    def prepare(case: MlaCase) -> Ready:
        step = peer.prepare(case)
        return Ready(None, case, step.run, lambda: step.out)

    return prepare
