from typing import Any

import pytest
from tests.cluster.admission.matrix import manifest

from plait_operator.validate import read
from plait_operator.validate.pod_template import (
    ENGINE,
    OWN_INITS,
    OWN_MOUNTS,
    OWN_VOLUMES,
    REFUSED,
    REMOVABLE,
    ROUTER,
    Refused,
    template_violations,
)


def fields(told: dict[str, Any], main: str = ENGINE) -> list[str]:
    return [v.field for v in template_violations(told, path="t", main=main)]


def _template(row: Refused, main: str, value: Any) -> dict[str, Any]:
    """A podTemplate that holds `value` at the path of `row`."""
    *steps, last = row.path.split(".")
    made: dict[str, Any] = {last: value}
    for step in reversed(steps):
        made = {step.removesuffix("[*]"): [{"name": main, **made}] if step.endswith("[*]") else made}
    return made


@pytest.mark.parametrize("main", [ENGINE, ROUTER])
@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row.main or 'both'}-{row.path}")
def test_every_row_of_the_table_refuses_where_it_says(row: Refused, main: str) -> None:
    told = list(template_violations(_template(row, main, {"x": 1}), path="t", main=main))
    at = f"t.{row.path.replace('[*]', '[0]')}"
    mine = [v for v in told if v.field == at and v.reason == row.reason]
    assert len(mine) == (1 if row.main in ("", main) else 0)
    assert all(not row.instead or row.instead.removesuffix(" of the role") in v.fix for v in mine)


@pytest.mark.parametrize(
    ("template", "instead"),
    [
        ({"spec": {"containers": [{"name": ENGINE, "image": "x"}]}}, "spec.decode.image"),
        ({"spec": {"containers": [{"name": ENGINE, "env": []}]}}, "spec.decode.env"),
        ({"spec": {"serviceAccount": "x"}}, "spec.decode.podTemplate.spec.serviceAccountName"),
        ({"spec": {"hostNetwork": True}}, "spec.pods.hostNetwork"),
    ],
)
def test_the_place_instead_is_told_in_full(template: dict[str, Any], instead: str) -> None:
    [told] = template_violations(template, path="spec.decode.podTemplate", main=ENGINE)
    assert told.fix == f"remove it; its place is {instead}"


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row.main or 'both'}-{row.path}")
def test_a_null_there_is_refused_too(row: Refused) -> None:
    main = row.main or ENGINE
    if row.path.startswith("spec."):
        assert fields(_template(row, main, None), main) != []


@pytest.mark.parametrize("key", REMOVABLE)
def test_what_is_not_plaits_may_be_taken_away(key: str) -> None:
    assert fields({"spec": {key: None}}) == []


@pytest.mark.parametrize(
    ("told", "where"),
    [
        ({"spec": {"initContainers": [{"name": "engine", "image": "a"}]}}, "t.spec.initContainers[0].name"),
        (
            {"spec": {"containers": [{"name": "a", "image": "b"}, {"name": "a", "image": "b"}]}},
            "t.spec.containers[1].name",
        ),
        ({"spec": {"containers": [{"name": "a", "image": "B b"}]}}, "t.spec.containers[0].image"),
        ({"spec": {"containers": [{"name": "A", "image": "b"}]}}, "t.spec.containers[0].name"),
        (
            {"spec": {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]}},
            "t.spec.volumes[0]",
        ),
        ({"spec": {"volumes": [{"name": "v"}, {"name": "v"}]}}, "t.spec.volumes[1].name"),
        (
            {"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "X"}}]}},
            "t.spec.volumes[0].persistentVolumeClaim.claimName",
        ),
        (
            {"spec": {"readinessGates": [{"conditionType": "plait.dev/router-admitted"}]}},
            "t.spec.readinessGates[0].conditionType",
        ),
        ({"metadata": {"labels": {"a b": "c"}}}, "t.metadata.labels.a b"),
        ({"metadata": {"labels": {"a": "b c"}}}, "t.metadata.labels.a"),
        ({"metadata": {"labels": {"a": 1}}}, "t.metadata.labels.a"),
        ({"metadata": {"label": {}}}, "t.metadata.label"),
        ({"metadata": []}, "t.metadata"),
        ({"spec": []}, "t.spec"),
        ({"kind": "Pod"}, "t.kind"),
    ],
)
def test_other_faults(told: dict[str, Any], where: str) -> None:
    assert fields(told) == [where]


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/plait", True),
        ("/plait/", True),
        ("/plait/x", True),
        ("/", True),
        ("/dev", True),
        ("/dev/shm", True),
        ("/run/plait/x", True),
        ("/plaits", False),
        ("/data", False),
        ("/dev/infiniband", False),
    ],
)
def test_no_mount_hides_a_folder_of_plaits(path: str, refused: bool) -> None:
    told = {
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": ENGINE, "volumeMounts": [{"name": "v", "mountPath": path}]}],
        }
    }
    assert bool(fields(told)) is refused
    told["spec"]["containers"][0] |= {"name": "sidecar", "image": "a"}
    assert fields(told) == []


def test_a_group_may_be_told_its_topology() -> None:
    key = "leaderworkerset.sigs.k8s.io/exclusive-topology"
    assert fields({"metadata": {"annotations": {key: "rack"}}}) == []
    assert fields({"metadata": {"labels": {key: "rack"}}}) == [f"t.metadata.labels.{key}"]


def test_a_sidecar_may_mount_what_is_plaits() -> None:
    mounts = [{"name": "tmp", "mountPath": "/x"}]
    assert fields({"spec": {"containers": [{"name": "a", "image": "b", "volumeMounts": mounts}]}}) == []


def test_what_is_refused_is_what_the_pods_really_have() -> None:
    from plait.contract.families import FAMILIES
    from plait_operator.capacity import context_length_of, contract_of
    from plait_operator.children.context import Context, Release
    from plait_operator.children.revision import template
    from plait_operator.children.static import static

    for change in ({}, {"spec/model/source": {"hub": {"repo": "zai-org/GLM-5-FP8"}}}):
        body = manifest({"spec/router/auth": {"secretRef": {"name": "k"}}, **change})
        body["spec"]["router"]["tls"] = {"secretRef": {"name": "t"}}
        deployment, found = read(body)
        assert found == []
        assert deployment is not None
        shape = FAMILIES["glm-5-fp8"]
        context = Context(
            deployment=deployment,
            release=Release(),
            shape=shape,
            contract=contract_of(deployment.spec, shape),
            context_length=context_length_of(deployment.spec, shape),
        )
        pods = [(ENGINE, template(context, role)["spec"]) for role in ("prefill", "decode")]
        routers = [
            child["spec"]["template"]["spec"] for child in static(context) if child["kind"] == "Deployment"
        ]
        assert len(routers) == 1
        for main, pod in [*pods, (ROUTER, routers[0])]:
            assert {volume["name"] for volume in pod["volumes"]} <= set(OWN_VOLUMES[main])
            [container] = [each for each in pod["containers"] if each["name"] == main]
            for mount in container["volumeMounts"]:
                assert mount["mountPath"].startswith(OWN_MOUNTS[main])
            assert {each["name"] for each in pod.get("initContainers", [])} <= set(OWN_INITS)
