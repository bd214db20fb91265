"""A release's life on a real API server: installed, upgraded, rolled back, removed, installed again.

Nothing answers the webhook here, for its pods have no node: so this shows whom one that is down holds up.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cluster.chart.conftest import CHART
from tests.cluster.conftest import release_finalizers
from tests.cluster.harness.api import PLAIT, Api, Manifest, RefusedError
from tests.cluster.harness.helm import Helm
from tests.cluster.harness.kubectl import CommandError, Kubectl
from tests.cluster.harness.waiting import until

REGISTRATION = "admissionregistration.k8s.io/v1"
KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRDS = ("sharedkvdeployments.plait.dev", "sharedkvroles.plait.dev")
EXAMPLE: Manifest = yaml.safe_load((Path(CHART) / "examples/laptop-cpu.yaml").read_text())


def example(namespace: str, *, name: str = "tiny") -> Manifest:
    return {**EXAMPLE, "metadata": {"name": name, "namespace": namespace}}


def columns(crd: Manifest) -> list[str]:
    """Names of the printer columns."""
    return [column["name"] for column in crd["spec"]["versions"][0].get("additionalPrinterColumns", ())]


def bundles(api: Api, release: str) -> set[str]:
    return {
        hook["clientConfig"].get("caBundle", "")
        for kind in KINDS
        for hook in api.get(REGISTRATION, kind, release)["webhooks"]
    }


@pytest.fixture
def filled(api: Api, plane, installed: str) -> str:  # type: ignore[no-untyped-def]
    """What the operator does after an installation: certificate and bundle are written."""
    bundle = base64.b64encode((plane.instance.certificates / "ca.crt").read_bytes()).decode()
    for kind in KINDS:
        step = {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}
        api.raw(
            "PATCH",
            f"/apis/{REGISTRATION}/{kind.lower()}s/plait.{installed}",
            [step],
            content="application/json-patch+json",
        )
    data = {"tls.crt": "YQ==", "tls.key": "Yg=="}
    api.patch("v1", "Secret", "plait-admission-tls", installed, {"data": data})
    return bundle


@pytest.fixture
def elsewhere(api: Api) -> Iterator[str]:
    """A namespace that the release looks after."""
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "chart-elsewhere"}})
    yield "chart-elsewhere"
    with contextlib.suppress(RefusedError):
        release_finalizers(api, "chart-elsewhere")
    for resource in api.list(PLAIT, "SharedKVDeployment", "chart-elsewhere"):
        api.delete(PLAIT, "SharedKVDeployment", resource["metadata"]["name"], "chart-elsewhere")


def test_an_upgrade_renews_the_crds_and_leaves_what_the_operator_wrote(
    helm: Helm, api: Api, installed: str, filled: str
) -> None:
    # Older definitions: as if a chart before this one had known no printer columns.
    for name in CRDS:
        step = [{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"}]
        if columns(api.raw("GET", f"{DEFINITIONS}/{name}")):
            api.raw("PATCH", f"{DEFINITIONS}/{name}", step, content="application/json-patch+json")
            assert columns(api.raw("GET", f"{DEFINITIONS}/{name}")) == []
    for words in (
        ("upgrade", "plait", CHART, "-n", installed, "--set", "admission.timeoutSeconds=7"),
        ("rollback", "plait", "1", "-n", installed),
    ):
        helm(*words)
        assert bundles(api, f"plait.{installed}") == {filled}, words
        secret = api.get("v1", "Secret", "plait-admission-tls", installed)
        assert secret["data"] == {"tls.crt": "YQ==", "tls.key": "Yg=="}, words
        for name in CRDS:
            wanted = yaml.safe_load((Path(CHART) / f"files/crds/{name.partition('.')[0]}.yaml").read_text())
            assert columns(api.raw("GET", f"{DEFINITIONS}/{name}")) == columns(wanted), words


def test_uninstall_keeps_definitions_and_resources_and_a_release_of_another_name_takes_them_over(
    helm: Helm, api: Api, kubectl: Kubectl, installed: str
) -> None:
    # In the release's own namespace the webhook is not asked, so this goes in while it is down.
    api.create(example(installed))
    helm("uninstall", "plait", "-n", installed, "--wait")
    for name in CRDS:
        assert api.raw("GET", f"{DEFINITIONS}/{name}")
    assert api.get(PLAIT, "SharedKVDeployment", "tiny", installed)["spec"]["model"]["name"] == "tiny"
    kinds = "deploy,svc,sa,secret,role,rolebinding,pdb,netpol,cm,lease"
    left = kubectl("get", kinds, "-n", installed, "-l", "app.kubernetes.io/instance=plait", "-o", "name")
    assert left == ""
    wide = "clusterrole,clusterrolebinding,mutatingwebhookconfiguration,validatingwebhookconfiguration"
    assert kubectl("get", wide, "-l", "app.kubernetes.io/instance=plait", "-o", "name") == ""

    with pytest.raises(CommandError, match="invalid ownership metadata"):
        helm("install", "other", CHART, "-n", installed)
    helm("install", "other", CHART, "-n", installed, "--take-ownership")
    try:
        assert api.get(PLAIT, "SharedKVDeployment", "tiny", installed)
    finally:
        helm("uninstall", "other", "-n", installed, "--wait")


def test_whom_a_webhook_that_is_down_holds_up(
    helm: Helm, api: Api, kubectl: Kubectl, installed: str, filled: str, elsewhere: str
) -> None:
    given = yaml.safe_dump(example(elsewhere))
    # Everybody who writes a deployment: that is what Fail means.
    until(
        lambda: not _passes(kubectl, "create", "--dry-run=server", "-f", "-", given=given),
        what="the webhook is asked",
        seconds=30,
    )
    with pytest.raises(RefusedError, match=r"failed calling webhook .*plait\.dev"):
        api.create(example(elsewhere))
    # Not the release's namespace.
    api.create(example(installed))
    # Not the operator, which has to write finalizers.
    mine = ("--as", f"system:serviceaccount:{installed}:plait-operator")
    patch = '{"metadata":{"finalizers":["plait.dev/drain"]}}'
    helm("upgrade", "plait", CHART, "-n", installed, "--set", "admission.enabled=false")
    until(lambda: _made(api, example(elsewhere)), what="the webhook is not asked any more", seconds=30)
    # Without it helm would keep the webhook off: no new values are the old ones.
    helm("upgrade", "plait", CHART, "-n", installed, "--reset-values")
    words = ("patch", "skv", "tiny", "-n", elsewhere, "--type", "merge", "-p", patch)
    # The API server hears of the webhook a moment later.
    until(
        lambda: not _passes(kubectl, *words, "--dry-run=server"),
        what="the webhook is asked again",
        seconds=30,
    )
    with pytest.raises(CommandError, match=r"failed calling webhook .*plait\.dev"):
        kubectl(*words)
    kubectl(*words, *mine)
    # Nobody's deletion, and nobody who takes the finalizer off what is on its way out.
    kubectl("delete", "skv", "tiny", "-n", elsewhere, "--wait=false")
    assert api.get(PLAIT, "SharedKVDeployment", "tiny", elsewhere)["metadata"]["deletionTimestamp"]
    free = '{"metadata":{"finalizers":null}}'
    kubectl("patch", "skv", "tiny", "-n", elsewhere, "--type", "merge", "-p", free)
    assert api.get(PLAIT, "SharedKVDeployment", "tiny", elsewhere) is None
    # And nothing that is not Plait's.
    api.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "x", "namespace": elsewhere},
            "data": {"a": "b"},
        }
    )


def _passes(kubectl: Kubectl, *words: str, given: str = "") -> bool:
    try:
        kubectl(*words, given=given)
    except CommandError:
        return False
    return True


def _made(api: Api, manifest: Manifest) -> bool:
    try:
        api.create(manifest)
    except RefusedError:
        return False
    return True
