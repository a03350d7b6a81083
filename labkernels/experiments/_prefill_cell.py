"""One workload of the prefill experiment: prepare, time in turns, then check what was timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from labkernels.experiments._prefill_grid import CUDA_CORES_LENGTHS, Cell
from labkernels.kernels import spec as specs
from labkernels.kernels.spec import KernelSpec, NumericPolicy
from labkernels.measure import accuracy, device, prefill_peers, timing
from labkernels.measure.accuracy import PEER_CHAIN, Chain, Errors
from labkernels.measure.peers import Refused, one_line
from labkernels.measure.prefill_cases import PrefillCase, prefill_case
from labkernels.measure.prefill_judge import PrefillJudge
from labkernels.measure.timing import Quartiles


@dataclass(frozen=True, eq=False)
class Contender:
    """Something that computes a prefill; its names are its columns in the data."""

    name: str
    backend: str
    tensor_cores: str
    policy: str
    chain: Chain
    prepare: Callable[[PrefillCase], "Ready"]


@dataclass(frozen=True, eq=False)
class Ready:
    """A contender prepared for one case; lse2 and plan are None where it has none."""

    contender: Contender
    case: PrefillCase
    run: Callable[[], object]
    out: Callable[[], object]
    lse2: object | None = None
    plan: object | None = None


@dataclass(frozen=True, eq=False)
class Measured:
    """Times of a contender whose sampled rows kept their bounds."""

    ready: Ready
    times: Quartiles
    errors: Errors


@dataclass(eq=False)
class CellResult:
    """What a cell gave: measurements, and words for those contenders that have none."""

    sensors: dict[str, float] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    words: list[tuple[Contender, str, str]] = field(default_factory=list)


def contenders(missing: Mapping[str, str]) -> dict[str, Contender]:
    """Return ours and the peers, but for backends that cannot run here, which `missing` names."""
    ours = [
        _ours(spec, policy)
        for spec in specs.discover().values()
        if spec.family == "prefill"
        for policy in spec.policies[:1]
        if policy.exp2 != "library"
    ]
    peers = [
        Contender(peer.name, peer.backend, peer.tensor_cores, "", PEER_CHAIN, _peer(peer))
        for peer in prefill_peers.PEERS.values()
        if peer.backend not in missing and peer.available() is None
    ]
    return {item.name: item for item in (*ours, *peers)}


def measure_cell(
    cell: Cell, chosen: Mapping[str, Contender], *, repeats: int, seed: int
) -> CellResult:
    """Measure the contenders on one workload, and ours on its twin, on the current CUDA device."""
    result = CellResult()
    cases = [prefill_case(cell.workload, seed=seed)]
    ready = [_prepare(item, cases[0], result) for item in chosen.values()]
    if cell.twin is not None:
        cases.append(prefill_case(cell.twin, seed=seed))
        ready += [
            _prepare(replace(item, name=f"{item.name} {cell.twin_word}"), cases[1], result)
            for item in chosen.values()
            if item.backend == "cuda"
        ]
    done = {item.contender.name: item for item in ready if item is not None}
    with device.sampling() as reading:
        times = timing.time_interleaved(
            {name: item.run for name, item in done.items()}, repeats=repeats
        )
    result.sensors = reading.sensors
    judges = {id(case): PrefillJudge(case) for case in cases}
    for name, item in done.items():
        spoil(item)
        item.run()
        errors = judges[id(item.case)](item.out(), item.lse2, item.contender.chain)
        if errors.passed:
            result.measured.append(Measured(item, times[name], errors))
        else:
            result.words.append((item.contender, "failed", bound_words(errors)))
    return result


def bound_words(errors: Errors) -> str:
    """How far errors lie beyond what is allowed."""
    return (
        f"worst error {errors.bound_ratio:.3g} of its bound, allowed: 1; worst head's RMSE "
        f"{errors.rmse_ratio:.3g} of the expected, allowed: {accuracy.RMSE_RATIO_MAX:g}"
    )


def _prepare(contender: Contender, case: PrefillCase, result: CellResult) -> Ready | None:
    work = case.workload
    if contender.name.startswith("prefill_fma") and max(work.q_lens) not in CUDA_CORES_LENGTHS:
        return None
    try:
        ready = contender.prepare(case)
    except (Refused, ValueError) as error:
        result.words.append((contender, "refused", one_line(error)))
        return None
    return replace(ready, contender=contender)


def _ours(spec: KernelSpec, policy: NumericPolicy) -> Contender:
    def prepare(case: PrefillCase) -> Ready:
        from labkernels import ops

        step = ops.prefill_step(
            case.q,
            case.kv,
            case.cu_seqlens_q,
            causal=case.workload.causal,
            kernel=spec.name,
            policy=policy,
            scale=case.scale,
        )
        return Ready(contender, case, step.run, lambda: step.out, step.lse2, step.plan)

    on = spec.uses_tensor_cores(policy)
    contender = Contender(
        spec.name,
        spec.language,
        "on" if on else "off",
        policy.label,
        Chain(on, policy.denominator, policy.exp2),
        prepare,
    )
    return contender


def _peer(peer) -> Callable[[PrefillCase], Ready]:
    def prepare(case: PrefillCase) -> Ready:
        step = peer.prepare(case)
        return Ready(None, case, step.run, step.out)

    return prepare


def spoil(item: Ready) -> None:
    """What the last run does not write is NaN afterwards."""
    item.out().fill_(float("nan"))
    if item.lse2 is not None:
        item.lse2.fill_(float("nan"))
