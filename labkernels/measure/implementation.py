"""A participant of a measurement: a kernel of ours under a policy, or a peer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from labkernels.kernels.call import Step
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.operation import Operation, operations
from labkernels.kernels.registry import discover, kernels_of
from labkernels.measure.peers.peer import Peer, Refused, peers_of
from labkernels.policy import NumericPolicy


@dataclass(frozen=True, eq=False)
class Implementation:
    """Something that computes an operation.

    name identifies it; kernel, library (for our kernels the language), tensor_cores and label are
    its columns in the data. policy: the policy that its outputs are judged by. prepare(inputs)
    returns a step, or raises Refused or ValueError; for our kernels it also takes the options of
    the function in ops. spec: the kernel if it is ours, else None.
    """

    name: str
    kernel: str
    library: str
    policy: NumericPolicy
    label: str
    prepare: Callable[..., Step]
    missing: Callable[[], str | None] = lambda: None
    spec: Kernel | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it is ours: its failure fails the measurement, and a peer's is only recorded."""
        return self.library in ("cuda", "triton")

    @property
    def tensor_cores(self) -> str:
        """Whether its products run on tensor cores, "on" or "off"."""
        return "on" if self.policy.tensor_cores else "off"


def with_tile(kernel: str, label: str, head_dim: int) -> Kernel:
    """Return a kernel whose only tile is the one named; the kernel's own choices need not have it.

    Raises: ValueError if its source cannot be compiled for the tile.
    """
    spec = discover()[kernel]
    tiles = [*spec.tiles(spec.shape(head_dim=head_dim), spec.policies[0])]
    tiles += [*spec.named_tiles(head_dim), *spec.space(head_dim)]
    chosen = next((option for option in tiles if option.label == label), None)
    if chosen is None:
        allowed = ", ".join(dict.fromkeys(option.label for option in tiles))
        raise ValueError(f"tile = {label!r}, allowed for {kernel}: {allowed}")
    return spec.with_tile(chosen)


def first_policy(spec: Kernel) -> Sequence[NumericPolicy]:
    """A kernel's preferred policy, alone in a sequence."""
    return spec.policies[:1]


def on_and_off(spec: Kernel) -> Sequence[NumericPolicy]:
    """The first policy with tensor cores and the first without, if they exist."""
    first: dict[bool, NumericPolicy] = {}
    for policy in spec.policies:
        first.setdefault(policy.tensor_cores, policy)
    return list(first.values())


def implementations(
    operation: str, policies: Callable[[Kernel], Sequence[NumericPolicy]] = first_policy
) -> dict[str, Implementation]:
    """All implementations of an operation by name, ours first.

    policies(spec): the policies under which a kernel of ours takes part. The references, which use
    torch's own exponential, do not take part.
    """
    of = operations()[operation]
    ours = (item for spec in _kernels(operation) for item in _of_kernel(of, spec, policies(spec)))
    peers = (of_peer(operation, peer) for peer in peers_of(operation).values())
    return {item.name: item for item in (*ours, *peers)}


def references(operation: str) -> dict[str, Implementation]:
    """The reference of an operation, which torch computes in float64, by name; {} without one."""
    of = operations()[operation]
    return {
        spec.name: _implementation(of, spec, spec.policies[0], spec.name)
        for spec in kernels_of(operation, "torch").values()
    }


def _kernels(operation: str) -> Iterator[Kernel]:
    for spec in kernels_of(operation).values():
        if spec.policies[0].exp2 != "library":
            yield spec


def _of_kernel(
    of: Operation, spec: Kernel, policies: Sequence[NumericPolicy]
) -> Iterator[Implementation]:
    policies = [policy for policy in policies if policy.exp2 != "library"]
    for policy in policies:
        word = _word(policy, policies)
        for order, options in _orders(of, spec):
            yield _implementation(of, spec, policy, f"{spec.name}{word}{order}", order, **options)


def _word(policy: NumericPolicy, policies: Sequence[NumericPolicy]) -> str:
    """What an implementation's name says of its policy, if its kernel takes part under several."""
    if len(policies) == 1:
        return ""
    if len({other.tensor_cores for other in policies}) == len(policies):
        return " on" if policy.tensor_cores else " off"
    return f" {policy.label}"


def _implementation(
    of: Operation, spec: Kernel, policy: NumericPolicy, name: str, order: str = "", **options
) -> Implementation:
    return Implementation(
        name=name,
        kernel=f"{spec.name}{order}",
        library=spec.language,
        policy=policy,
        label=policy.label,
        prepare=partial(of.step, kernel=spec.name, policy=policy, **options),
        spec=spec,
    )


def _orders(of: Operation, spec: Kernel) -> list[tuple[str, dict[str, Any]]]:
    """The ways in which a backward kernel can sum dq: a name's suffix and options for each."""
    if of.name != "backward":
        return [("", {})]
    orders = {
        tile.dq for tile in spec.tiles(spec.shape(head_dim=spec.head_dims[0]), spec.policies[0])
    }
    either = [("", {"deterministic": False}), (" ordered", {"deterministic": True})]
    return either if len(orders) > 1 else either[:1]


def of_peer(operation: str, peer: Peer) -> Implementation:
    """A peer as an implementation of one of its operations, full or causal."""

    def prepare(inputs) -> Step:
        for feature in inputs.workload.variant.features:
            if feature not in peer.features:
                raise Refused(f"a variant with {feature}, allowed: {peer.features or 'none'}")
        return peer.steps[operation](inputs)

    return Implementation(
        peer.name, peer.name, peer.library, peer.policy, "", prepare, peer.missing
    )
