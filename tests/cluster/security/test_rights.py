"""Who may do what: a table of `kubectl auth can-i`, asked of a real API server after a real installation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from tests.cluster.harness.api import Api
from tests.cluster.harness.helm import Helm
from tests.cluster.harness.kubectl import Kubectl

from plait_operator.api.resource import SharedKVDeployment
from plait_operator.children.accounts import accounts
from plait_operator.children.context import Context, Release

CHART = Path(__file__).parents[3] / "charts/plait"
SYSTEM, SERVING, OTHER = "rights-system", "rights-serving", "rights-other"
NARROW, WATCHED = "rights-narrow", "rights-watched"
"""A release that looks after WATCHED alone."""

OPERATOR = f"{SYSTEM}:plait-operator"
ADMISSION = f"{SYSTEM}:plait-admission"
ROUTER = f"{SERVING}:tiny-router"
ENGINE = f"{SERVING}:default"
NARROW_OPERATOR = f"{NARROW}:narrow-plait-operator"

WRITES = ("create", "update", "patch", "delete", "deletecollection")
READS = ("get", "list", "watch")
EVERYWHERE = "*"


class Row(NamedTuple):
    """`verbs` on `resource` in `where` (a namespace or EVERYWHERE), each of them or none.

    `resource`: `kind`, `kind:subresource` or `kind/name`.
    """

    account: str
    verbs: tuple[str, ...]
    resource: str
    where: str
    may: bool


YES, NO = True, False
CHILDREN = (
    "configmaps",
    "services",
    "serviceaccounts",
    "deployments.apps",
    "jobs.batch",
    "poddisruptionbudgets.policy",
    "networkpolicies.networking.k8s.io",
    "horizontalpodautoscalers.autoscaling",
    "roles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "sharedkvroles.plait.dev",
)
TABLE = [
    # The operator: what it looks after, wherever that is.
    *(Row(OPERATOR, (*READS, "create", "patch", "delete"), kind, EVERYWHERE, YES) for kind in CHILDREN),
    Row(OPERATOR, (*READS, "patch"), "sharedkvdeployments.plait.dev", EVERYWHERE, YES),
    Row(OPERATOR, ("create", "delete", "update"), "sharedkvdeployments.plait.dev", EVERYWHERE, NO),
    Row(OPERATOR, ("get", "patch"), "sharedkvdeployments.plait.dev:status", EVERYWHERE, YES),
    Row(OPERATOR, READS, "pods", EVERYWHERE, YES),
    Row(OPERATOR, WRITES, "pods", EVERYWHERE, NO),
    Row(OPERATOR, ("patch",), "pods:status", EVERYWHERE, YES),
    Row(OPERATOR, ("create",), "pods:exec", EVERYWHERE, NO),
    Row(OPERATOR, ("get",), "pods:log", EVERYWHERE, NO),
    Row(OPERATOR, ("create", "patch"), "events.events.k8s.io", EVERYWHERE, YES),
    # No Secret but the webhook's own, and that one cannot be listed for.
    Row(OPERATOR, (*READS, *WRITES), "secrets", EVERYWHERE, NO),
    Row(OPERATOR, (*READS, *WRITES), "secrets", SERVING, NO),
    Row(OPERATOR, ("list", "watch", "create", "delete"), "secrets", SYSTEM, NO),
    Row(OPERATOR, ("get", "patch", "update"), "secrets/plait-admission-tls", SYSTEM, YES),
    Row(OPERATOR, ("get",), "secrets/other", SYSTEM, NO),
    # Leadership in its own namespace, by one Lease.
    Row(OPERATOR, ("get", "update", "patch"), "leases.coordination.k8s.io/plait-operator", SYSTEM, YES),
    Row(OPERATOR, ("get", "update", "delete"), "leases.coordination.k8s.io/other", SYSTEM, NO),
    Row(OPERATOR, ("get", "update", "create"), "leases.coordination.k8s.io", SERVING, NO),
    # Nothing that would make it more than it is.
    Row(OPERATOR, ("escalate", "bind"), "roles.rbac.authorization.k8s.io", SERVING, NO),
    Row(OPERATOR, WRITES, "clusterroles.rbac.authorization.k8s.io", EVERYWHERE, NO),
    Row(OPERATOR, WRITES, "clusterrolebindings.rbac.authorization.k8s.io", EVERYWHERE, NO),
    Row(OPERATOR, ("impersonate",), "users", EVERYWHERE, NO),
    Row(OPERATOR, ("create",), "serviceaccounts:token", SERVING, NO),
    Row(OPERATOR, WRITES, "namespaces", EVERYWHERE, NO),
    Row(OPERATOR, (*WRITES, "list"), "nodes", EVERYWHERE, NO),
    Row(OPERATOR, WRITES, "customresourcedefinitions.apiextensions.k8s.io", EVERYWHERE, NO),
    Row(
        OPERATOR,
        ("create", "delete"),
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
        EVERYWHERE,
        NO,
    ),
    *(
        Row(
            OPERATOR, ("get", "patch"), f"{kind}.admissionregistration.k8s.io/plait.{SYSTEM}", EVERYWHERE, YES
        )
        for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
    ),
    Row(
        OPERATOR,
        ("patch",),
        "validatingwebhookconfigurations.admissionregistration.k8s.io/other",
        EVERYWHERE,
        NO,
    ),
    # The webhook asks for nothing at all.
    *(
        Row(ADMISSION, READS, kind, where, NO)
        for kind in ("secrets", "pods", "configmaps", "sharedkvdeployments.plait.dev")
        for where in (SYSTEM, EVERYWHERE)
    ),
    Row(ADMISSION, WRITES, "sharedkvdeployments.plait.dev", EVERYWHERE, NO),
    # A router reads the pods of its namespace.
    Row(ROUTER, READS, "pods", SERVING, YES),
    Row(ROUTER, READS, "pods", OTHER, NO),
    Row(ROUTER, WRITES, "pods", SERVING, NO),
    Row(ROUTER, ("patch", "update"), "pods:status", SERVING, NO),
    Row(ROUTER, ("create",), "pods:exec", SERVING, NO),
    *(
        Row(ROUTER, (*READS, "create"), kind, SERVING, NO)
        for kind in ("secrets", "configmaps", "services", "sharedkvdeployments.plait.dev")
    ),
    # Engines run under the namespace's default account (and get no token of it).
    Row(ENGINE, READS, "pods", SERVING, NO),
    Row(ENGINE, READS, "secrets", SERVING, NO),
    Row(ENGINE, READS, "sharedkvdeployments.plait.dev", SERVING, NO),
    # An operator with a list of namespaces has no right in any other.
    *(Row(NARROW_OPERATOR, ("list", "patch"), kind, WATCHED, YES) for kind in CHILDREN),
    *(Row(NARROW_OPERATOR, ("list", "patch"), kind, OTHER, NO) for kind in CHILDREN),
    *(Row(NARROW_OPERATOR, ("list", "patch"), kind, EVERYWHERE, NO) for kind in CHILDREN),
    Row(NARROW_OPERATOR, READS, "secrets", WATCHED, NO),
]


@pytest.fixture(scope="module")
def installed(api: Api, helm: Helm) -> Iterator[None]:
    """Two releases, and a deployment's routers as the operator would make them."""
    namespaces = (SYSTEM, SERVING, OTHER, NARROW, WATCHED)
    for name in namespaces:
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    helm("install", "plait", str(CHART), "-n", SYSTEM, "--take-ownership")
    narrow = {"watchNamespaces": [WATCHED], "crds": {"install": False}, "admission": {"enabled": False}}
    helm("install", "narrow", str(CHART), "-n", NARROW, values=narrow)
    manifest = yaml.safe_load((CHART / "examples/laptop-cpu.yaml").read_text())
    manifest["metadata"] |= {"namespace": SERVING, "uid": "0"}
    for child in accounts(Context(deployment=SharedKVDeployment.of(manifest), release=Release())):
        child["metadata"].pop("ownerReferences", None)
        api.apply(child)
    yield
    for release, where in (("plait", SYSTEM), ("narrow", NARROW)):
        helm("uninstall", release, "-n", where, "--wait")
    for name in namespaces:
        api.delete("v1", "Namespace", name)


def asked(kubectl: Kubectl, row: Row) -> dict[str, bool]:
    resource, _, sub = row.resource.partition(":")
    asks = {"account": row.account, "namespace": row.where, "subresource": sub}
    return {verb: kubectl.can_i(verb, resource, **asks) for verb in row.verbs}


def one_verb(row: Row) -> Row:
    """With the verb that says most: of what is refused the first, of what is allowed the last."""
    return row._replace(verbs=row.verbs[-1:] if row.may else row.verbs[:1])


def test_the_table_in_short(installed: None, kubectl: Kubectl) -> None:
    """One verb of each row, and every fault at once."""
    rows = [one_verb(row) for row in TABLE]
    wrong = [row for row in rows if asked(kubectl, row) != dict.fromkeys(row.verbs, row.may)]
    assert wrong == []


@pytest.mark.full
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.account}-{row.resource}-{row.where}")
def test_the_table(installed: None, kubectl: Kubectl, row: Row) -> None:
    assert asked(kubectl, row) == dict.fromkeys(row.verbs, row.may)


def test_pods_that_need_no_token_have_none(installed: None, api: Api) -> None:
    deployment = api.get("apps/v1", "Deployment", "plait-admission", SYSTEM)
    assert deployment is not None
    assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    for account in api.list("v1", "ServiceAccount", SYSTEM, selector="app.kubernetes.io/name=plait"):
        assert account["automountServiceAccountToken"] is False, account["metadata"]["name"]
