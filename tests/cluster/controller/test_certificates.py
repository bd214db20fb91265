"""The webhook's certificate and the bundles of both configurations, at a real API server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.cluster.harness.api import Api, Manifest

from plait_operator.admission.certificates import bundle_of, ensure, names_of
from plait_operator.apply.client import Client
from plait_operator.controller.certificates import Certificates, Issuer

ADMISSION = "admissionregistration.k8s.io/v1"
NAME = "plait-certificates-test"
NOW = datetime.now(UTC)


def configuration(kind: str, namespace: str) -> Manifest:
    hooks = [
        {
            "name": f"{name}.plait.dev",
            "clientConfig": {"service": {"name": "admission", "namespace": namespace, "path": "/x"}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "namespaceSelector": {"matchLabels": {"nowhere": "nothing"}},
            "rules": [
                {
                    "apiGroups": ["plait.dev"],
                    "apiVersions": ["v1alpha1"],
                    "operations": ["CREATE"],
                    "resources": ["sharedkvdeployments"],
                }
            ],
        }
        for name in ("a", "b")
    ]
    return {
        "apiVersion": ADMISSION,
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": hooks,
    }


@pytest.fixture
def certificates(client: Client, api: Api, namespace: str) -> Iterator[Certificates]:
    """As the chart leaves it: an empty Secret, and configurations without a bundle."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls", "namespace": namespace}}
    api.create(secret | {"type": "Opaque"})
    for kind in ("Mutating", "Validating"):
        api.create(configuration(kind, namespace))
    yield Certificates(
        client,
        Issuer(
            ensure=ensure,
            bundle_of=bundle_of,
            namespace=namespace,
            secret="tls",
            configuration=NAME,
            dns_names=names_of("admission", namespace),
        ),
    )
    for kind in ("Mutating", "Validating"):
        api.delete(ADMISSION, f"{kind}WebhookConfiguration", NAME)


def bundles(api: Api) -> set[str]:
    found = [api.get(ADMISSION, f"{kind}WebhookConfiguration", NAME) for kind in ("Mutating", "Validating")]
    return {hook["clientConfig"].get("caBundle", "") for one in found if one for hook in one["webhooks"]}


def test_from_nothing_to_a_certificate_and_its_bundle(
    certificates: Certificates, api: Api, namespace: str
) -> None:
    assert certificates.look(NOW) == 3
    secret = api.get("v1", "Secret", "tls", namespace)
    assert secret is not None
    assert {"tls.crt", "tls.key"} <= set(secret["data"])
    assert bundles(api) == {base64.b64encode(bundle_of(secret["data"])).decode()}
    assert certificates.look(NOW) == 0, "nothing is written twice"


def test_a_bundle_that_was_taken_away_comes_back(certificates: Certificates, api: Api) -> None:
    certificates.look(NOW)
    (before,) = bundles(api)
    wipe = [{"op": "remove", "path": "/webhooks/1/clientConfig/caBundle"}]
    api.patch(ADMISSION, "ValidatingWebhookConfiguration", NAME, "", wipe)
    assert certificates.look(NOW) == 1
    assert bundles(api) == {before}


def test_a_certificate_that_runs_out_is_renewed_under_the_same_bundle(
    certificates: Certificates, api: Api, namespace: str
) -> None:
    certificates.look(NOW)
    (before,) = bundles(api)
    old = api.get("v1", "Secret", "tls", namespace)
    assert certificates.look(NOW + timedelta(days=70)) == 1
    new = api.get("v1", "Secret", "tls", namespace)
    assert old is not None
    assert new is not None
    assert old["data"]["tls.crt"] != new["data"]["tls.crt"]
    assert bundles(api) == {before}


def test_without_the_charts_objects_it_waits(certificates: Certificates, api: Api, namespace: str) -> None:
    api.delete("v1", "Secret", "tls", namespace)
    assert certificates.look(NOW) == 0
