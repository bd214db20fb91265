"""What the chart renders: taken by the API server, restricted, with least rights, and by flags that exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.chart.conftest import CHART, Render
from tests.cluster.harness.api import Api, Manifest
from tests.cluster.harness.helm import Helm
from tests.cluster.harness.kubectl import CommandError, Kubectl
from tests.support.restricted import faults
from tests.support.who_may_talk import matches
from tests.unit.operator.children.given import context
from typer.main import get_command

from plait_operator.apply.kinds import CHILDREN
from plait_operator.children.accounts import accounts
from plait_operator.children.context import Release
from plait_operator.children.policies import OPERATOR_LABELS
from plait_operator.command import app

FILES = Path(CHART)
EVERYTHING: dict[str, Any] = {
    "images": {"registry": "local/mirror", "operator": {"repository": "op", "digest": "sha256:" + "a" * 64}},
    "imagePullSecrets": [{"name": "pull"}],
    "watchNamespaces": ["serving", "other"],
    "experimental": ["multi-host-groups"],
    "operator": {
        "replicas": 3,
        "nodeSelector": {"pool": "infra"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "podAnnotations": {"note": "text"},
        "podLabels": {"team": "one"},
    },
    "admission": {"podAnnotations": {"note": "text"}, "podLabels": {"team": "one"}},
    "networkPolicies": {"apiServerCidrs": ["10.96.0.1/32"], "apiServerPorts": [443, 16443]},
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True},
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "cert-manager": {"certManager": {"enabled": True}},
    "cert-manager, an issuer": {
        "certManager": {"enabled": True, "issuerRef": {"kind": "ClusterIssuer", "name": "ca"}}
    },
    "no webhook": {"admission": {"enabled": False}},
    "one of each": {"operator": {"replicas": 1}, "admission": {"replicas": 1}},
    "bare": {
        "crds": {"install": False},
        "networkPolicies": {"enabled": False},
        "podDisruptionBudgets": {"enabled": False},
    },
    **{path.stem: yaml.safe_load(path.read_text()) for path in sorted(FILES.glob("values-*.yaml"))},
}
EACH = pytest.mark.parametrize("variant", VARIANTS)
_SHORT = ("defaults", "everything", "cert-manager", "no webhook")
# Of those that ask the API server, the rest is for the long run.
TRIED = pytest.mark.parametrize(
    "variant", [name if name in _SHORT else pytest.param(name, marks=pytest.mark.full) for name in VARIANTS]
)
# Kinds of others, which a bare API server does not know.
FOREIGN = ("monitoring.coreos.com/v1", "cert-manager.io/v1")


def of(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [m for m in manifests if m["kind"] == kind]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod: (name, PodTemplateSpec)."""
    for m in manifests:
        if m["kind"] == "Deployment":
            yield m["metadata"]["name"], m["spec"]["template"]
        if m["kind"] == "Pod":
            yield m["metadata"]["name"], m


def rules(manifests: list[Manifest]) -> Iterator[tuple[str, str, Manifest]]:
    """Every rule: (kind, namespace of the role, rule)."""
    for m in manifests:
        if m["kind"] in ("Role", "ClusterRole"):
            for rule in m["rules"]:
                yield m["kind"], m["metadata"].get("namespace", ""), rule


def test_lint(helm: Helm) -> None:
    told = helm("lint", CHART, "--strict", "--kube-version", "1.34.0")
    assert "0 chart(s) failed" in told


@TRIED
def test_the_api_server_takes_all_of_it(
    render: Render, kubectl: Kubectl, api: Api, shared: str, variant: str
) -> None:
    told = render(VARIANTS[variant], namespace=shared)
    for name in VARIANTS[variant].get("watchNamespaces", ()):
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    known = [m for m in told if m["apiVersion"] not in FOREIGN]
    words = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
    ]
    answer = kubectl(*words, given=yaml.safe_dump_all(known))
    assert answer.count("serverside-applied") == len(known)


@TRIED
def test_pod_security_restricted_admits_every_pod(
    render: Render, api: Api, shared: str, variant: str
) -> None:
    seen = 0
    for name, template in pods(render(VARIANTS[variant], namespace=shared)):
        spec = {k: v for k, v in template["spec"].items() if k not in ("serviceAccountName",)}
        labels = template["metadata"]["labels"]
        pod: Manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": shared, "labels": labels},
            "spec": spec,
        }
        api.raw("POST", f"/api/v1/namespaces/{shared}/pods", pod, dryRun="All", fieldValidation="Strict")
        assert faults(spec) == []
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]["memory"]
        seen += 1
    assert seen == (2 if variant == "no webhook" else 3)


@pytest.mark.parametrize("variant", ["everything", "no webhook"])
def test_names_and_labels(render: Render, variant: str) -> None:
    told = render(VARIANTS[variant], name="r" * 50)
    names = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in told]
    assert len(set(names)) == len(names)
    for m in told:
        if m["kind"] in ("Service", "Deployment", "Pod"):
            assert len(m["metadata"]["name"]) <= 63
        # What the operator makes is told from what helm makes by this label.
        assert m["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


@EACH
def test_the_real_command_lines_take_the_flags(render: Render, variant: str) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    told = dict(pods(render(VARIANTS[variant])))
    for component, command in (("operator", "run"), ("admission", "admission")):
        template = told.get(f"plait-{component}")
        if template is None:
            assert variant == "no webhook"
            continue
        (container,) = template["spec"]["containers"]
        assert container["command"] == ["python3", "-m", "plait_operator", command]
        params = commands[command].make_context(command, list(container["args"])).params
        assert params["health_port"] == 8081
        assert params["log_level"] == "info"
    (container,) = told["plait-operator"]["spec"]["containers"]
    params = commands["run"].make_context("run", list(container["args"])).params
    values = VARIANTS[variant]
    ours = values.get("admission", {}).get("enabled", True) and not values.get("certManager")
    assert params["namespace"] == "plait-system"
    assert list(params["watch_namespace"] or ()) == values.get("watchNamespaces", [])
    narrowed = values.get("networkPolicies", {})
    default = Release()
    assert tuple(params["api_server_cidr"]) == tuple(narrowed.get("apiServerCidrs", default.api_server_cidrs))
    assert tuple(params["api_server_port"]) == tuple(narrowed.get("apiServerPorts", default.api_server_ports))
    assert params["admission_secret"] == ("plait-admission-tls" if ours else "")
    assert params["admission_configuration"] == ("plait.plait-system" if ours else "")


def test_images(render: Render) -> None:
    for _, template in pods(render(EVERYTHING)):
        assert template["spec"]["containers"][0]["image"] == "local/mirror/op@sha256:" + "a" * 64
        assert template["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    told = dict(pods(render({"images": {"router": {"repository": "r", "tag": "7"}}})))
    args = told["plait-operator"]["spec"]["containers"][0]["args"]
    assert "--router-image=r:7" in args
    assert "--runtime-image=plait-runtime:0.1.0" in args


@EACH
def test_rights_are_least(render: Render, variant: str) -> None:
    told = render(VARIANTS[variant])
    for kind, namespace, rule in rules(told):
        text = str(rule)
        assert "*" not in text
        for verb in ("escalate", "bind", "impersonate", "deletecollection"):
            assert verb not in rule["verbs"]
        if "secrets" in rule["resources"]:
            assert (kind, namespace) == ("Role", "plait-system")
            assert rule["resourceNames"] == ["plait-admission-tls"]
            assert set(rule["verbs"]) == {"get", "update", "patch"}
        if rule["apiGroups"] == ["admissionregistration.k8s.io"]:
            assert rule["resourceNames"] == ["plait.plait-system"]
            assert set(rule["verbs"]) == {"get", "patch"}
        assert not {"nodes", "namespaces", "customresourcedefinitions", "pods/exec", "pods/log"} & set(
            rule["resources"]
        )
    subjects = {s["name"] for m in told if m["kind"].endswith("RoleBinding") for s in m["subjects"]}
    # The webhook has no right at all, and no token to use one.
    assert subjects == {"plait-operator"}
    for name, template in pods(told):
        assert template["spec"]["automountServiceAccountToken"] is (name == "plait-operator")


@pytest.mark.parametrize("variant", ["defaults", "everything"])
def test_rights_are_enough_for_every_kind_that_the_operator_writes(render: Render, variant: str) -> None:
    told = render(VARIANTS[variant])
    for name in VARIANTS[variant].get("watchNamespaces", [""]):
        has = {
            (group, resource): set(rule["verbs"])
            for kind, namespace, rule in rules(told)
            if namespace == name and (kind == "Role" if name else kind == "ClusterRole")
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        for kind in CHILDREN:
            group = kind.api_version.rpartition("/")[0]
            needed = {"get", "list", "watch", "create", "patch", "delete"}
            assert needed <= has.get((group, kind.plural), set()), kind
        # It may only give what it has: the rights of the routers.
        (role,) = [m for m in accounts(context()) if m["kind"] == "Role"]
        for rule in role["rules"]:
            assert set(rule["verbs"]) <= has[rule["apiGroups"][0], rule["resources"][0]]


def test_only_watched_namespaces_are_open_to_it(render: Render) -> None:
    told = render(EVERYTHING)
    where = {m["metadata"]["namespace"] for m in of(told, "Role")}
    assert where == {"plait-system", "serving", "other"}
    for m in of(told, "ClusterRole"):
        assert {r for rule in m["rules"] for r in rule["resources"]} == {
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
        }


@EACH
def test_the_webhook_can_lock_nobody_out(render: Render, variant: str) -> None:
    told = render(VARIANTS[variant])
    hooks = [h for m in told if m["kind"].endswith("WebhookConfiguration") for h in m["webhooks"]]
    assert len(hooks) == (0 if variant == "no webhook" else 2)
    for hook in hooks:
        assert hook["failurePolicy"] == "Fail"
        assert 1 <= hook["timeoutSeconds"] <= 30
        for namespace in ("plait-system", "kube-system"):
            assert not matches(hook["namespaceSelector"], {"kubernetes.io/metadata.name": namespace})
        assert matches(hook["namespaceSelector"], {"kubernetes.io/metadata.name": "serving"})
        assert [rule["apiGroups"] for rule in hook["rules"]] == [["plait.dev"]]
        assert "DELETE" not in hook["rules"][0]["operations"]
    if VARIANTS[variant].get("watchNamespaces"):
        for hook in hooks:
            assert not matches(hook["namespaceSelector"], {"kubernetes.io/metadata.name": "default"})


def test_the_certificate_is_made_by_one_side_only(render: Render) -> None:
    own, theirs = render(), render(VARIANTS["cert-manager"])
    assert len(of(own, "Secret")) == 1
    assert "data" not in of(own, "Secret")[0]
    assert of(theirs, "Secret") == []
    (certificate,) = of(theirs, "Certificate")
    assert certificate["spec"]["secretName"] == "plait-admission-tls"
    assert certificate["spec"]["dnsNames"][0] == "plait-admission.plait-system.svc"
    for m in theirs:
        if m["kind"].endswith("WebhookConfiguration"):
            annotation = m["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
            assert annotation == "plait-system/plait-admission"
    assert of(render(VARIANTS["cert-manager, an issuer"]), "Issuer") == []


def test_crds_are_kept_and_can_be_left_out(render: Render) -> None:
    found = of(render(), "CustomResourceDefinition")
    assert {m["spec"]["names"]["kind"] for m in found} == {"SharedKVDeployment", "SharedKVRole"}
    assert {m["metadata"]["annotations"]["helm.sh/resource-policy"] for m in found} == {"keep"}
    assert of(render({"crds": {"install": False}}), "CustomResourceDefinition") == []


def test_the_operators_pods_are_those_that_the_routers_let_in(render: Render) -> None:
    labels = dict(pods(render(EVERYTHING)))["plait-operator"]["metadata"]["labels"]
    assert OPERATOR_LABELS.items() <= labels.items()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"operatr": {}}, "operatr"),
        ({"operator": None}, "operator"),
        ({"images": {"registry": "https://mirror.test/project"}}, "registry"),
        ({"operator": {"replica": 2}}, "replica"),
        ({"operator": {"replicas": "two"}}, "replicas"),
        ({"watchNamespaces": ["plait-system"]}, "the release's own namespace"),
        ({"watchNamespaces": ["kube-system"]}, "kube-system"),
    ],
)
def test_bad_values_are_refused_by_name(render: Render, values: dict[str, Any], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        render(values)
