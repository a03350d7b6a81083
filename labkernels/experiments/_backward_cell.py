"""One workload of the backward experiment: prepare, time in turns, then check what was timed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from labkernels.kernels import spec as specs
from labkernels.kernels.spec import KernelSpec
from labkernels.measure import backward_peers, device, timing
from labkernels.measure.accuracy import PEER_CHAIN, Chain
from labkernels.measure.backward_cases import BackwardCase, backward_case
from labkernels.measure.backward_judge import BackwardJudge, GradientErrors
from labkernels.measure.peers import Refused, one_line
from labkernels.measure.timing import Quartiles
from labkernels.workload import Backward


@dataclass(frozen=True, eq=False)
class Ready:
    """A backward pass prepared for one case, with the forward pass that it belongs to."""

    run: Callable[[], object]
    gradients: Callable[[], list]
    out: object
    lse2: object | None = None
    plan: object | None = None


@dataclass(frozen=True, eq=False)
class Contender:
    """Something that computes gradients; its names are its columns in the data."""

    name: str
    backend: str
    policy: str
    chain: Chain
    prepare: Callable[[BackwardCase], Ready]
    tensor_cores: str = "on"


@dataclass(frozen=True, eq=False)
class Measured:
    """Times of a contender whose judged heads kept their bounds."""

    contender: Contender
    plan: object | None
    times: Quartiles
    errors: Mapping[str, GradientErrors]


@dataclass(eq=False)
class CellResult:
    """What a workload gave: measurements, and words for those contenders that have none."""

    sensors: dict[str, float] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    words: list[tuple[Contender, str, str]] = field(default_factory=list)


def contenders() -> dict[str, Contender]:
    """Return ours, adding dq up in either way, and the peers that can run here."""
    ours = [
        contender
        for spec in specs.discover().values()
        if spec.family == "backward"
        for contender in _ours(spec)
    ]
    peers = [
        Contender(peer.name, peer.backend, "", PEER_CHAIN, _peer(peer))
        for peer in backward_peers.PEERS.values()
        if peer.available() is None
    ]
    return {item.name: item for item in (*ours, *peers)}


def measure_cell(
    workload: Backward, chosen: Mapping[str, Contender], *, repeats: int, seed: int
) -> CellResult:
    """Measure the contenders on one workload, on the current CUDA device."""
    result, case = CellResult(), backward_case(workload, seed=seed)
    ready = {name: prepare(item, case, result) for name, item in chosen.items()}
    ready = {name: item for name, item in ready.items() if item is not None}
    with device.sampling() as reading:
        times = timing.time_interleaved(
            {name: item.run for name, item in ready.items()}, repeats=repeats
        )
    result.sensors = reading.sensors
    judge = BackwardJudge(case)
    for name, item in ready.items():
        judge_one(chosen[name], item, times[name], judge, result)
    return result


def prepare(contender: Contender, case: BackwardCase, result: CellResult) -> Ready | None:
    """Prepare a contender, or note the words of its refusal."""
    try:
        return contender.prepare(case)
    except (Refused, ValueError) as error:
        result.words.append((contender, "refused", one_line(error)))
        return None


def judge_one(
    contender: Contender, item: Ready, times: Quartiles, judge: BackwardJudge, result: CellResult
) -> None:
    """Run once more over NaN, judge, and note the measurement or why there is none."""
    for gradient in item.gradients():
        gradient.fill_(float("nan"))
    item.run()
    errors = judge(item.gradients(), item.out, item.lse2, contender.chain)
    if all(error.passed for error in errors.values()):
        result.measured.append(Measured(contender, item.plan, times, errors))
    else:
        result.words.append((contender, "failed", bound_words(errors)))


def bound_words(errors: Mapping[str, GradientErrors]) -> str:
    """How far errors lie beyond what is allowed."""
    worst = ", ".join(f"{name} {error.bound_ratio:.3g}" for name, error in errors.items())
    return f"worst errors over their bounds: {worst}, allowed: 1"


def _ours(spec: KernelSpec) -> Iterator[Contender]:
    policy = spec.policies[0]
    orders = {tile.dq for tile in spec.tiles(spec.head_dims[0], 1, policy)}
    for deterministic in (False, True) if len(orders) > 1 else (False,):

        def prepare(case: BackwardCase, deterministic: bool = deterministic) -> Ready:
            from labkernels import ops

            step = ops.backward_step(
                *case.arguments,
                causal=case.workload.causal,
                deterministic=deterministic,
                kernel=spec.name,
                policy=policy,
                scale=case.forward.scale,
            )
            gradients = [step.dq, step.dk, step.dv]
            return Ready(step.run, lambda: gradients, case.out, case.lse2, step.plan)

        name = f"{spec.name} ordered" if deterministic else spec.name
        chain = Chain(spec.uses_tensor_cores(policy), policy.denominator, policy.exp2)
        yield Contender(name, spec.language, policy.label, chain, prepare)


def _peer(peer) -> Callable[[BackwardCase], Ready]:
    def prepare(case: BackwardCase) -> Ready:
        step = peer.prepare(case)
        return Ready(step.run, step.gradients, step.out)

    return prepare
