"""The routers' rights."""

from __future__ import annotations

from tests.unit.operator.children.given import context

from plait_operator.children.accounts import accounts
from plait_operator.children.router import router


def test_routers_read_pods_and_do_nothing_else():
    account, role, binding = accounts(context())
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "serving"}
    ]


def test_only_the_routers_pods_get_the_token():
    account = accounts(context())[0]
    pod = router(context())["spec"]["template"]["spec"]
    assert account["automountServiceAccountToken"] is False
    assert pod["automountServiceAccountToken"] is True
    assert pod["serviceAccountName"] == account["metadata"]["name"]
