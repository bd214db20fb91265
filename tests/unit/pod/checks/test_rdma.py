"""RDMA devices of a folder that looks like a node's /sys and /dev."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plait.pod.asked import Asked
from plait.pod.checks.rdma import check, devices

ACTIVE, DOWN = "4: ACTIVE\n", "1: DOWN\n"


@pytest.fixture
def node(tmp_path: Path) -> Callable[..., None]:
    """Adds a device to the root folder that `asked` uses."""
    root = tmp_path / "root"

    def add(name: str, *states: str, given: bool = True) -> None:
        verbs = root / "sys/class/infiniband_verbs"
        number = len(list(verbs.glob("*"))) if verbs.is_dir() else 0
        for port, state in enumerate(states, 1):
            folder = root / f"sys/class/infiniband/{name}/ports/{port}"
            folder.mkdir(parents=True)
            (folder / "state").write_text(state)
        (root / f"sys/class/infiniband/{name}").mkdir(parents=True, exist_ok=True)
        (verbs / f"uverbs{number}").mkdir(parents=True)
        (verbs / f"uverbs{number}/ibdev").write_text(f"{name}\n")
        if given:
            (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
            (root / f"dev/infiniband/uverbs{number}").touch()

    return add


def test_over_tcp_nothing_is_looked_at(asked: Callable[..., Asked]) -> None:
    (result,) = check(asked())
    assert (result.ok, result.skipped) == (True, True)


def test_named_devices_that_are_up(asked: Callable[..., Asked], node: Callable[..., None]) -> None:
    node("mlx5_0", ACTIVE)
    node("mlx5_1", DOWN, ACTIVE)
    node("mlx5_9", DOWN, given=False)
    (result,) = check(asked(backend="mooncake", rdma_devices=("mlx5_0", "mlx5_1")))
    assert result.ok
    assert result.value == "mlx5_0 ACTIVE, mlx5_1 DOWN/ACTIVE, mlx5_9 DOWN"


def test_any_device_will_do_where_none_is_named(
    asked: Callable[..., Asked], node: Callable[..., None]
) -> None:
    node("mlx5_0", DOWN)
    node("mlx5_1", ACTIVE)
    (result,) = check(asked(backend="mooncake"))
    assert result.ok


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (("mlx5_7",), "mlx5_7 is not on this node"),
        (("mlx5_0",), "mlx5_0 has no active port (DOWN)"),
        (("mlx5_1",), "mlx5_1 is not given to this container"),
        (("mlx5_2",), "mlx5_2 has no active port (none)"),
        ((), "mlx5_1 is not given to this container"),
    ],
)
def test_what_is_wrong_with_a_device(
    asked: Callable[..., Asked], node: Callable[..., None], wanted: tuple[str, ...], says: str
) -> None:
    node("mlx5_0", DOWN)
    node("mlx5_1", ACTIVE, given=False)
    node("mlx5_2")
    (result,) = check(asked(backend="mooncake", rdma_devices=wanted))
    assert not result.ok
    assert says in result.reason
    assert "transfer." in result.fix


def test_every_wanted_device_that_fails_is_told(
    asked: Callable[..., Asked], node: Callable[..., None]
) -> None:
    node("mlx5_0", DOWN)
    (result,) = check(asked(backend="mooncake", rdma_devices=("mlx5_0", "mlx5_1")))
    assert "mlx5_0" in result.reason
    assert "mlx5_1" in result.reason


def test_a_node_without_any(asked: Callable[..., Asked], tmp_path: Path) -> None:
    (result,) = check(asked(backend="mooncake"))
    assert (result.ok, result.value) == (False, "none")
    assert devices(tmp_path) == []
