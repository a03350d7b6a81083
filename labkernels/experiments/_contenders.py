"""Who takes part in the decode experiment: our kernels under their default policies, and peers."""

from collections.abc import Callable
from dataclasses import dataclass

from labkernels.kernels import spec as specs
from labkernels.kernels.spec import Instance, KernelSpec, NumericPolicy
from labkernels.measure.accuracy import PEER_CHAIN, Chain
from labkernels.measure.cases import DecodeCase
from labkernels.measure.peers import PEERS, Peer
from labkernels.workload import Decode


@dataclass(frozen=True, eq=False)
class Ready:
    """A contender prepared for one case; lse2 and plan are None where it has none."""

    run: Callable[[], object]
    out: object
    lse2: object | None
    plan: object | None


@dataclass(frozen=True, eq=False)
class Contender:
    """Something that computes a decode step.

    name tells it apart; kernel, backend, tensor_cores and policy are its columns in the data.
    instance(workload, tile) is the compiled variant of a CUDA kernel of ours.
    """

    name: str
    kernel: str
    backend: str
    tensor_cores: str
    policy: str
    chain: Chain
    available: Callable[[], str | None]
    prepare: Callable[[DecodeCase], Ready]
    instance: Callable[[Decode, str], Instance] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether a failure of it is a failure of the experiment; a peer's is only recorded."""
        return self.backend in ("cuda", "triton")

    @property
    def is_flashinfer(self) -> bool:
        """Whether it is one of FlashInfer's ways."""
        return self.backend == "flashinfer"


def contenders() -> dict[str, Contender]:
    """Return all contenders by name, ours first."""
    ours = [
        _ours(spec, policy) for spec in specs.discover().values() for policy in _policies_of(spec)
    ]
    return {item.name: item for item in (*ours, *map(_peer, PEERS.values()))}


def _policies_of(spec: KernelSpec) -> list[NumericPolicy]:
    """Return the first policy with tensor cores and the first without, where there are such.

    The references, which follow torch's own exponential, are no contenders.
    """
    if spec.family != "decode":
        return []
    first: dict[bool, NumericPolicy] = {}
    for policy in spec.policies:
        if policy.exp2 != "library":
            first.setdefault(spec.uses_tensor_cores(policy), policy)
    return list(first.values())


def _ours(spec: KernelSpec, policy: NumericPolicy) -> Contender:
    def prepare(case: DecodeCase) -> Ready:
        from labkernels import ops

        step = ops.decode_step(
            case.q, case.cache, kernel=spec.name, policy=policy, scale=case.scale
        )
        return Ready(step.run, step.out, step.lse2, step.plan)

    def instance(workload: Decode, tile: str) -> Instance:
        rows = spec.rows(workload.group)
        return spec.instance(
            dtype=workload.dtype,
            head_dim=workload.head_dim,
            group=workload.group,
            tile=spec.tile_named(tile, head_dim=workload.head_dim, rows=rows, policy=policy),
            policy=policy,
        )

    on = spec.uses_tensor_cores(policy)
    both = len(_policies_of(spec)) > 1
    return Contender(
        name=f"{spec.name} {_word(on)}" if both else spec.name,
        kernel=spec.name,
        backend=spec.language,
        tensor_cores=_word(on),
        policy=policy.label,
        chain=Chain(on, policy.denominator, policy.exp2),
        available=lambda: None,
        prepare=prepare,
        instance=instance if spec.language == "cuda" else None,
    )


def _peer(peer: Peer) -> Contender:
    def prepare(case: DecodeCase) -> Ready:
        step = peer.prepare(case.q, case.cache, scale=case.scale)
        return Ready(step.run, step.out, None, None)

    return Contender(
        name=peer.name,
        kernel=peer.name,
        backend=peer.backend,
        tensor_cores=peer.tensor_cores,
        policy="",
        chain=PEER_CHAIN,
        available=peer.available,
        prepare=prepare,
    )


def _word(on: bool) -> str:
    return "on" if on else "off"
