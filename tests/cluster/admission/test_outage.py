"""The webhook down: what is refused then, and what nobody can be locked out of."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cluster.admission.matrix import BAD, GOOD, manifest
from tests.cluster.harness.api import PLAIT, Api, Manifest, RefusedError, path
from tests.cluster.harness.helm import Helm
from tests.cluster.harness.operators import CONFIGURATION, Operators

KIND = "SharedKVDeployment"
REGISTRATION = "admissionregistration.k8s.io/v1"
CHART = Path(__file__).parents[3] / "charts" / "plait"
_NUMBERS = itertools.count(1)


def create(api: Api, namespace: str, body: Manifest) -> Manifest:
    told: Manifest = api.raw(
        "POST", path(PLAIT, KIND, namespace), body, dryRun="All", fieldValidation="Strict"
    )
    return told


def test_with_fail_nothing_passes_and_with_ignore_the_crd_still_refuses_its_share(
    api: Api, namespace: str, operators: Operators
) -> None:
    process = operators.admission()
    create(api, namespace, manifest({}))
    process.kill()
    with pytest.raises(RefusedError, match="failed calling webhook"):
        create(api, namespace, manifest({}))
    for kind in ("Mutating", "Validating"):
        name = f"{CONFIGURATION}-{namespace}"
        told = api.get(REGISTRATION, f"{kind}WebhookConfiguration", name)
        assert told is not None
        told["webhooks"][0]["failurePolicy"] = "Ignore"
        api.replace(told)
    for good in GOOD[:3]:
        create(api, namespace, manifest(good.change, cpu=good.cpu))
    for bad in [row for row in BAD if row.cel][:10]:
        with pytest.raises(RefusedError):
            create(api, namespace, manifest(bad.change, cpu=bad.cpu))


def test_a_server_that_comes_back_is_asked_again(api: Api, namespace: str, operators: Operators) -> None:
    process = operators.admission()
    process.kill()
    process.start()
    create(api, namespace, manifest({}))
    with pytest.raises(RefusedError, match=r"spec\.engine\.args\.dcp_size"):
        create(api, namespace, manifest({"spec/engine/args": {"dcp_size": 2}}))


@pytest.fixture
def release(api: Api, crds: list[str], helm: Helm) -> Iterator[str]:
    """Namespace of a release of which there are the chart's webhook configurations, and no server at all."""
    name = f"plait-release-{next(_NUMBERS)}"
    told = helm("template", "plait", str(CHART), "--namespace", name)
    rendered = [each for each in yaml.safe_load_all(told) if each]
    made = [each for each in rendered if each["kind"].endswith("WebhookConfiguration")]
    assert len(made) == 2
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for each in made:
        assert each["webhooks"][0]["failurePolicy"] == "Fail"
        api.create(each)
    yield name
    for each in made:
        api.delete(REGISTRATION, each["kind"], each["metadata"]["name"])
    api.delete("v1", "Namespace", name)


def test_nobody_is_locked_out_of_anything_but_new_deployments(api: Api, namespace: str, release: str) -> None:
    with pytest.raises(RefusedError, match="failed calling webhook"):
        create(api, namespace, manifest({}))
    # The release's own namespace: what the operator and helm make there, and its own resources too.
    create(api, release, manifest({}))
    for where in (release, namespace):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": where}}
        api.create(body)
        api.delete("v1", "ConfigMap", "x", where)


def test_an_object_on_its_way_out_gets_out(api: Api, namespace: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("crds")
    body = manifest({"metadata/name": "leaving", "metadata/finalizers": ["plait.dev/drain"]})
    body["metadata"]["namespace"] = namespace
    api.create(body)
    request.getfixturevalue("release")
    api.delete(PLAIT, KIND, "leaving", namespace)
    api.patch(PLAIT, KIND, "leaving", namespace, {"metadata": {"finalizers": []}})
    assert api.get(PLAIT, KIND, "leaving", namespace) is None
