"""Where the API server is and what opens it: from the settings, or from the pod's service account."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.router.config import ConfigError
from plait.router.discovery.kubernetes.access import Access, find_access
from plait.router.discovery.kubernetes.settings import KubernetesSettings

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name, text in (("namespace", "pool\n"), ("token", "first\n"), ("ca.crt", "PEM")):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_in_a_pod_everything_comes_from_the_service_account(account: Path) -> None:
    access = find_access(KubernetesSettings(), environ=POD, account=account)
    assert access == Access("https://10.96.0.1:443", "pool", account / "token", account / "ca.crt")
    six = {**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert find_access(KubernetesSettings(), environ=six, account=account).server == "https://[fd00::1]:443"


def test_a_renewed_token_is_seen(account: Path) -> None:
    access = find_access(KubernetesSettings(), environ=POD, account=account)
    assert access.token() == "first"
    (account / "token").write_text("second")
    assert access.token() == "second"


def test_settings_come_first(account: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    settings = KubernetesSettings(
        server="https://api:6443", namespace="other", token_file=str(tmp_path / "mine"), ca_file=""
    )
    access = find_access(settings, environ={}, account=account)
    assert access == Access("https://api:6443", "other", tmp_path / "mine", None)


def test_another_server_is_not_shown_the_accounts_token(account: Path) -> None:
    settings = KubernetesSettings(server="https://api:6443")
    access = find_access(settings, environ=POD, account=account)
    assert access.token_file is None
    assert access.token() == ""


def test_a_token_is_not_sent_in_the_clear(account: Path) -> None:
    token = str(account / "token")
    with pytest.raises(ConfigError, match="in the clear"):
        find_access(KubernetesSettings(server="http://api:80", token_file=token), account=account)
    for host in ("127.0.0.1", "localhost", "[::1]"):
        settings = KubernetesSettings(server=f"http://{host}:80", token_file=token)
        assert find_access(settings, account=account).token() == "first"


@pytest.mark.parametrize(
    ("missing", "environ", "field"),
    [
        ("namespace", POD, "kubernetes namespace"),
        ("token", POD, "kubernetes token_file"),
        ("ca.crt", POD, "kubernetes ca_file"),
        ("", {}, "kubernetes server"),
        ("", {**POD, "KUBERNETES_SERVICE_PORT": "tcp://x"}, "KUBERNETES_SERVICE_HOST, _PORT"),
    ],
)
def test_what_is_missing_is_named(account: Path, missing: str, environ: dict[str, str], field: str) -> None:
    if missing:
        (account / missing).unlink()
    with pytest.raises(ConfigError) as caught:
        find_access(KubernetesSettings(), environ=environ, account=account)
    assert caught.value.field == field
    assert caught.value.fix


def test_an_empty_namespace_file_is_no_namespace(account: Path) -> None:
    (account / "namespace").write_text("\n")
    with pytest.raises(ConfigError, match="name the namespace"):
        find_access(KubernetesSettings(), environ=POD, account=account)


@pytest.mark.parametrize("text", ["", "\n", "hunter2 x", "hunter2\nx", "hünter2"])
def test_a_file_that_holds_no_token_is_refused_without_showing_it(account: Path, text: str) -> None:
    access = find_access(KubernetesSettings(), environ=POD, account=account)
    (account / "token").write_text(text)
    with pytest.raises(ConfigError, match="one token alone") as caught:
        access.token()
    assert "nter2" not in str(caught.value)
