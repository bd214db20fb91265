import contextlib
import io
import runpy
from pathlib import Path
from typing import Any

import pytest

import plait_operator.validate
from plait_operator.validate.schema import check

_REPOSITORY = Path(__file__).parents[4]


def fields(value: object, kind: str, *, partial: bool = False) -> list[str]:
    return [v.field for v in check(value, kind, path="p", partial=partial)]


@pytest.mark.parametrize(
    ("value", "kind", "told"),
    [
        ({"nodeSelector": {"a": "b"}}, "V1PodSpec", ["p.containers"]),
        ({"containers": [{"name": "a"}]}, "V1PodSpec", []),
        ({"containers": [{"nam": "a"}]}, "V1PodSpec", ["p.containers[0].nam", "p.containers[0].name"]),
        ({"containers": {"name": "a"}}, "V1PodSpec", ["p.containers"]),
        ({"containers": [None]}, "V1PodSpec", ["p.containers[0]"]),
        ([], "V1PodSpec", ["p"]),
        ({"containers": [], "hostNetwork": "true"}, "V1PodSpec", ["p.hostNetwork"]),
        ({"containers": [], "priority": True}, "V1PodSpec", ["p.priority"]),
        ({"containers": [], "nodeSelector": {"a": 1, "b": "2"}}, "V1PodSpec", ["p.nodeSelector.a"]),
        ({"containers": [], "nodeSelector": None}, "V1PodSpec", []),
        ({"limits": {"cpu": "1", "memory": "x"}}, "V1ResourceRequirements", ["p.limits.memory"]),
        ({"limits": {"cpu": None}}, "V1ResourceRequirements", ["p.limits.cpu"]),
        ({"limits": ["cpu"]}, "V1ResourceRequirements", ["p.limits"]),
        ({"port": 80}, "V1TCPSocketAction", []),
        ({"port": "http"}, "V1TCPSocketAction", []),
        ({"port": 8.5}, "V1TCPSocketAction", ["p.port"]),
    ],
)
def test_fields_and_types(value: object, kind: str, told: list[str]) -> None:
    assert fields(value, kind) == told


def test_what_is_merged_into_another_needs_not_be_whole_at_its_top() -> None:
    assert fields({"containers": [{}]}, "V1PodSpec", partial=True) == ["p.containers[0].name"]
    assert fields({}, "V1PodSpec", partial=True) == []


def test_a_misspelt_field_is_told_with_the_nearest() -> None:
    [told] = check({"toleration": []}, "V1PodSpec", path="p", partial=True)
    assert told.fix == "did you mean tolerations?"


def test_the_table_is_that_of_the_client_in_use() -> None:
    committed = Path(plait_operator.validate.__file__).with_name("kubernetes_types.json").read_text()
    tool: dict[str, Any] = runpy.run_path(str(_REPOSITORY / "tools" / "kubernetes_types.py"))
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        tool["main"]()
    assert told.getvalue() == committed, "run tools/kubernetes_types.py again"
