"""What a spec asks for, whatever there is: the verdict on it, and every manifest. Built once for many looks.

A deployment is looked at some ten times for every change of it, and again whenever one of its pods moves.
What follows from the spec alone is the same each time and is most of the work, so the last few are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

from plait.contract.violation import ContractError, Violation
from plait_operator import names
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.capacity import context_length_of, contract_of, shape_of
from plait_operator.children.context import Context, Release
from plait_operator.children.revision import contract_map, revision
from plait_operator.children.static import static
from plait_operator.children.workload import workload
from plait_operator.observed import Manifest, Ref
from plait_operator.plan.drift import digest
from plait_operator.plan.roles import ROLES, Role
from plait_operator.validate import validate_spec

_KEPT: Final = 256
"""Some 90 KB each. A burst has many deployments on their way at once, each looked at again and again."""


_SIZES: Final = 8
"""Of both roles' workloads, kept with each blueprint: a rollout goes through some."""


class Built(NamedTuple):
    """A manifest with its digest. Shared between plans: never to be changed."""

    ref: Ref
    manifest: Manifest
    digest: str

    @classmethod
    def of(cls, manifest: Manifest) -> Built:
        """Of a manifest."""
        return cls(Ref.of(manifest), manifest, digest(manifest))


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """`violations`: then there is nothing else. `context`: with a contract once the shape is known.

    `static`: all children but the engines'. `targets`, `contracts`, `workloads`: by role, empty while the
    shape is not known; the replicas of workloads are for the rollout to say.
    """

    violations: tuple[Violation, ...] = ()
    context: Context | None = None
    static: tuple[Built, ...] = ()
    targets: Mapping[Role, str]
    contracts: tuple[Built, ...] = ()
    workloads: Mapping[Role, Manifest]
    _sized: dict[tuple[Role, int], Built] = field(init=False, compare=False, repr=False, default_factory=dict)

    def sized(self, role: Role, replicas: int) -> Built:
        """The workload of a role that asks for so many."""
        built = self._sized.get((role, replicas))
        if built is None:
            if len(self._sized) >= _SIZES:
                self._sized.clear()
            built = self._sized[role, replicas] = Built.of(with_replicas(self.workloads[role], replicas))
        return built

    @cached_property
    def wire(self) -> str:
        """Digits of the wire hash as labels carry them; empty while it is not known."""
        contract = None if self.context is None else self.context.contract
        return "" if contract is None else names.hash_label(contract.wire.hash)


def blueprint(
    deployment: SharedKVDeployment,
    release: Release,
    *,
    config: Mapping[str, Any] | None,
    apis: frozenset[str],
) -> Blueprint:
    """What `deployment` asks for. `config`: of the model, as it was inspected."""
    return _blueprint(_Given(deployment, release, config, apis))


def with_replicas(manifest: Manifest, replicas: int) -> Manifest:
    """A workload that asks for so many."""
    return {**manifest, "spec": {**manifest["spec"], "replicas": replicas}}


class _Given:
    """The input as a key. Equal where all that a blueprint is made of is equal."""

    def __init__(
        self,
        deployment: SharedKVDeployment,
        release: Release,
        config: Mapping[str, Any] | None,
        apis: frozenset[str],
    ) -> None:
        self.deployment = deployment
        self.release = release
        self.config = config
        self.apis = apis
        meta = deployment.meta
        self._name = (meta.namespace, meta.name, meta.uid, meta.generation)

    def __hash__(self) -> int:
        return hash(self._name)

    def __eq__(self, other: object) -> bool:
        # The generation alone is no proof: it starts anew with the object, and tests make objects by hand.
        return (
            isinstance(other, _Given)
            and self._name == other._name
            and self.apis == other.apis
            and self.config == other.config
            and self.release == other.release
            and self.deployment.spec == other.deployment.spec
        )


@lru_cache(maxsize=_KEPT)
def _blueprint(given: _Given) -> Blueprint:
    deployment, release, spec = given.deployment, given.release, given.deployment.spec
    shape, faults = None, list[Violation]()
    try:
        shape = shape_of(spec, given.config)
    except ContractError as error:
        faults += error.violations
    rules = validate_spec(spec, shape=shape, experimental=release.experimental)
    told = {violation.field for violation in rules}
    faults = [*rules, *(fault for fault in faults if fault.field not in told)]
    if spec.prefill.nodes_per_group > 1 and "LeaderWorkerSet" not in given.apis:
        count, fix = spec.prefill.nodes_per_group, "install LeaderWorkerSet, or nodesPerGroup: 1"
        faults.append(
            Violation("spec.prefill.nodesPerGroup", count, "this cluster has no LeaderWorkerSet", fix)
        )
    if faults:
        return Blueprint(violations=tuple(faults), targets={}, workloads={})
    ctx = Context(
        deployment=deployment,
        release=release,
        shape=shape,
        contract=contract_of(spec, shape) if shape is not None else None,
        context_length=context_length_of(spec, shape) if shape is not None else 0,
        apis=given.apis,
    )
    fixed = tuple(Built.of(manifest) for manifest in static(ctx))
    if shape is None:
        return Blueprint(context=ctx, static=fixed, targets={}, workloads={})
    return Blueprint(
        context=ctx,
        static=fixed,
        targets={role: revision(ctx, role) for role in ROLES},
        contracts=tuple(Built.of(contract_map(ctx, role)) for role in ROLES),
        workloads={role: workload(ctx, role, replicas=0) for role in ROLES},
    )
