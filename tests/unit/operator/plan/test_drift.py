"""Objects as a real API server (1.34) stored them, each beside the manifest that was applied."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait_operator.names import APPLIED
from plait_operator.plan.drift import differs, digest, quantity, stamped

LIVE = sorted((Path(__file__).parent / "live").glob("*.json"))
PAIRS = {path.stem: json.loads(path.read_text()) for path in LIVE}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    elif value not in (None, {}, [], "", False):
        yield path


def changed(live: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """The live object with another value at the path."""
    told = copy.deepcopy(live)
    at = told
    for step in path[:-1]:
        at = at[step]
    value = at[path[-1]]
    at[path[-1]] = (not value) if isinstance(value, bool) else (value + 1 if isinstance(value, int) else "zz")
    return told


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


FIELDS = [
    pytest.param(name, path, id=f"{name}:{'.'.join(map(str, path))}")
    for name, pair in PAIRS.items()
    for path in leaves(pair["wanted"])
]


def test_fixtures_are_there() -> None:
    assert len(PAIRS) == 11
    assert len(FIELDS) > 200


@pytest.mark.parametrize("name", PAIRS)
def test_nothing_is_written_when_nothing_changed(name: str) -> None:
    pair = PAIRS[name]
    assert differs(pair["wanted"], pair["live"]) == ""
    assert differs(stamped(pair["wanted"]), pair["live"]) == ""


@pytest.mark.parametrize(("name", "path"), FIELDS)
def test_every_field_that_is_set_is_watched(name: str, path: tuple[Any, ...]) -> None:
    pair = PAIRS[name]
    assert differs(pair["wanted"], changed(pair["live"], path)) != ""


@pytest.mark.parametrize(("name", "path"), FIELDS)
def test_every_change_of_the_manifest_is_applied(name: str, path: tuple[Any, ...]) -> None:
    pair = PAIRS[name]
    assert differs(changed(pair["wanted"], path), pair["live"]) == "the manifest is another one"


@pytest.mark.parametrize("name", PAIRS)
def test_a_missing_object_is_made(name: str) -> None:
    assert differs(PAIRS[name]["wanted"], None) == "missing"


@pytest.mark.parametrize("name", PAIRS)
def test_an_object_of_another_hand_is_taken(name: str) -> None:
    live = copy.deepcopy(PAIRS[name]["live"])
    del live["metadata"]["annotations"][APPLIED]
    assert differs(PAIRS[name]["wanted"], live) == "never applied by this operator"


DEPLOYMENT = "deployment-glm-decode-0123abcd"
CONTAINER = ("spec", "template", "spec", "containers", 0)
OURS = [
    # (object, path in the live object, value put there, words of the reason)
    (DEPLOYMENT, ("spec", "replicas"), 3, "spec.replicas was changed"),
    (DEPLOYMENT, (*CONTAINER, "image"), "other:1", "containers[engine].image was changed"),
    (DEPLOYMENT, (*CONTAINER, "command"), ["sh"], "command was changed"),
    (DEPLOYMENT, (*CONTAINER, "args"), ["--port", "1", "--x"], "args was changed"),
    (DEPLOYMENT, (*CONTAINER, "env"), [], "env[A] is gone"),
    (DEPLOYMENT, (*CONTAINER, "resources", "limits", "cpu"), "2", "limits.cpu was changed"),
    (DEPLOYMENT, (*CONTAINER, "resources", "limits", "nvidia.com/gpu"), "4", "nvidia.com/gpu was changed"),
    (DEPLOYMENT, ("spec", "template", "spec", "tolerations"), [], "tolerations was changed"),
    (DEPLOYMENT, ("spec", "template", "spec", "nodeSelector", "disk"), "ssd", "nodeSelector.disk was added"),
    (DEPLOYMENT, ("spec", "template", "spec", "automountServiceAccountToken"), None, "automount"),
    (DEPLOYMENT, ("spec", "template", "spec", "hostNetwork"), True, "hostNetwork was changed"),
    (DEPLOYMENT, ("metadata", "ownerReferences"), [], "ownerReferences"),
    ("service-glm", ("spec", "selector", "track"), "canary", "spec.selector.track was added"),
    ("service-glm", ("spec", "ports", 0, "targetPort"), 81, "targetPort was changed"),
    ("service-glm", ("spec", "type"), "NodePort", "spec.type was changed"),
    ("service-glm-prefill", ("spec", "publishNotReadyAddresses"), False, "publishNotReadyAddresses"),
    ("configmap-glm-contract", ("data", "contract.json"), "[]", "data.contract.json was changed"),
    ("poddisruptionbudget-glm-decode", ("spec", "maxUnavailable"), 1, "maxUnavailable was changed"),
    ("poddisruptionbudget-glm-decode", ("spec", "maxUnavailable"), "0%", "maxUnavailable was changed"),
    ("networkpolicy-glm-decode", ("spec", "ingress", 0, "from"), [], "from was changed"),
    ("networkpolicy-glm-decode", ("spec", "egress"), [{}, {}], "egress was changed"),
    ("networkpolicy-glm-decode", ("spec", "podSelector", "matchLabels", "y"), "z", "y was added"),
    (
        "horizontalpodautoscaler-glm-decode",
        ("spec", "metrics", 0, "pods", "target", "averageValue"),
        "2",
        "averageValue was changed",
    ),
    ("role-glm-router", ("rules", 0, "verbs"), ["get"], "verbs was changed"),
    ("serviceaccount-glm-router", ("automountServiceAccountToken",), True, "automountServiceAccountToken"),
]
THEIRS = [
    # (object, path, value) that an apply would not change
    (DEPLOYMENT, ("metadata", "labels", "team"), "search"),
    (DEPLOYMENT, ("metadata", "annotations", "deployment.kubernetes.io/revision"), "7"),
    (DEPLOYMENT, ("status",), {"replicas": 9}),
    (DEPLOYMENT, ("metadata", "resourceVersion"), "99"),
    (DEPLOYMENT, ("spec", "progressDeadlineSeconds"), 1),
    (DEPLOYMENT, ("spec", "template", "metadata", "annotations", "x/restartedAt"), "now"),
    (DEPLOYMENT, (*CONTAINER, "terminationMessagePolicy"), "FallbackToLogsOnError"),
    (DEPLOYMENT, (*CONTAINER, "resources", "limits", "cpu"), "1000m"),
    (DEPLOYMENT, (*CONTAINER, "resources", "limits", "memory"), "1048576Ki"),
    ("service-glm", ("spec", "clusterIP"), "10.0.0.9"),
    ("service-glm", ("spec", "ports", 0, "nodePort"), 30123),
    ("serviceaccount-glm-router", ("secrets",), [{"name": "x"}]),
    ("configmap-glm-contract", ("data", "more"), "y"),
]


def put(live: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    told = copy.deepcopy(live)
    where = told
    for step in path[:-1]:
        where = where.setdefault(step, {}) if isinstance(where, dict) else where[step]
    if value is None:
        where.pop(path[-1])
    else:
        where[path[-1]] = value
    return told


@pytest.mark.parametrize(("name", "path", "value", "words"), OURS)
def test_a_hand_on_our_fields_is_told(name: str, path: tuple[Any, ...], value: Any, words: str) -> None:
    assert words in differs(PAIRS[name]["wanted"], put(PAIRS[name]["live"], path, value))


@pytest.mark.parametrize(("name", "path", "value"), THEIRS)
def test_what_an_apply_would_not_change_is_left(name: str, path: tuple[Any, ...], value: Any) -> None:
    assert differs(PAIRS[name]["wanted"], put(PAIRS[name]["live"], path, value)) == ""


def test_a_container_or_variable_beside_ours_is_not_ours() -> None:
    pair = copy.deepcopy(PAIRS[DEPLOYMENT])
    pod = pair["live"]["spec"]["template"]["spec"]
    pod["containers"].insert(0, {"name": "sidecar", "image": "s"})
    pod["containers"][1]["env"].insert(0, {"name": "Z", "value": "1"})
    assert differs(pair["wanted"], pair["live"]) == ""


def test_an_environment_value_is_no_quantity() -> None:
    pair = PAIRS[DEPLOYMENT]
    assert "env[A].value was changed" in differs(
        pair["wanted"], put(pair["live"], (*CONTAINER, "env", 0), {"name": "A", "value": "1"})
    )


def test_a_digest_is_of_the_content() -> None:
    manifest = PAIRS[DEPLOYMENT]["wanted"]
    other = json.loads(json.dumps(manifest, sort_keys=True))
    assert digest(manifest) == digest(other) == digest(stamped(manifest))
    assert stamped(stamped(manifest)) == stamped(manifest)
    assert stamped(manifest)["metadata"]["annotations"][APPLIED] == digest(manifest)
    assert APPLIED not in manifest["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("1000m", "1"),
        ("1Gi", "1024Mi"),
        (8, "8"),
        ("0.5", "500m"),
        ("1e3", "1k"),
        ("1E", "1000P"),
        ("2000000u", 2),
    ],
)
def test_equal_quantities(one: object, two: object) -> None:
    assert quantity(one) == quantity(two) is not None


@pytest.mark.parametrize("text", ["", "x", "1x", "Gi", True, "nan", "inf"])
def test_no_quantity(text: object) -> None:
    assert quantity(text) is None
