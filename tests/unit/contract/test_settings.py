import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest

from plait.contract.layouts import Layout, Split
from plait.contract.setting_kinds import Fault, GatherPath, Kernels, Owners, PeerAccess
from plait.contract.settings import Settings, SettingsError, markdown, variable

DOCS = Path(__file__).parents[3] / "docs" / "settings.md"


def refused(environ: dict[str, str]) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(environ)
    return {v.field: f"{v.reason} | {v.fix}" for v in caught.value.violations}


def test_nothing_set_is_inert() -> None:
    settings = Settings.from_env({"PATH": "/bin", "SGLANG_PLUGINS": "x"})
    assert settings == Settings()
    assert settings.layout is Layout.OFF
    assert settings.to_env() == {}


def test_every_variable_is_read() -> None:
    environ = {
        "PLAIT_LAYOUT": "shared",
        "PLAIT_SPLIT": "page-zigzag",
        "PLAIT_CPU": "1",
        "PLAIT_PREFETCH": "0",
        "PLAIT_PEER_ACCESS": "required",
        "PLAIT_PEER_TIMEOUT_S": "2.5",
        "PLAIT_GATHER_PATH": "peer-view",
        "PLAIT_GATHER_COSTS": "/etc/costs.json",
        "PLAIT_GATHER_LOG": "1",
        "PLAIT_KERNELS": "torch",
        "PLAIT_NARROW_TAIL": "0",
        "PLAIT_SCRATCH_TOKENS": "4096",
        "PLAIT_STATE_DIR": "/run/plait",
        "PLAIT_STATUS_INTERVAL_S": "0.5",
        "PLAIT_TRANSFER_TIMEOUT_S": "30",
        "PLAIT_INTEGRITY": "0",
        "PLAIT_DEBUG_CHECKS": "1",
        "PLAIT_NVTX": "1",
        "PLAIT_TEST_OWNERS": "random",
        "PLAIT_TEST_FAULT": "shift-rows:2",
    }
    assert set(environ) == {variable(f.name) for f in fields(Settings)}
    settings = Settings.from_env(environ)
    assert settings == Settings(
        layout=Layout.SHARED,
        split=Split.PAGE_ZIGZAG,
        cpu=True,
        prefetch=False,
        peer_access=PeerAccess.REQUIRED,
        peer_timeout_s=2.5,
        gather_path=GatherPath.PEER_VIEW,
        gather_costs=Path("/etc/costs.json"),
        gather_log=True,
        kernels=Kernels.TORCH,
        narrow_tail=False,
        scratch_tokens=4096,
        state_dir=Path("/run/plait"),
        status_interval_s=0.5,
        transfer_timeout_s=30.0,
        integrity=False,
        debug_checks=True,
        nvtx=True,
        test_owners=Owners.RANDOM,
        test_fault=Fault("shift-rows", "2"),
    )
    assert Settings.from_env(settings.to_env()) == settings
    assert settings.to_env() == environ


def test_all_faults_are_told_at_once_with_the_nearest_name() -> None:
    said = refused(
        {"PLAIT_LAYOUTS": "shared", "PLAIT_SPLIT": "zigzag", "PLAIT_CPU": "yes", "PLAIT_QQQQQQQQ": "1"}
    )
    assert set(said) == {"PLAIT_LAYOUTS", "PLAIT_SPLIT", "PLAIT_CPU", "PLAIT_QQQQQQQQ"}
    assert "PLAIT_LAYOUT?" in said["PLAIT_LAYOUTS"]
    assert "page-zigzag" in said["PLAIT_SPLIT"]
    assert "known names" in said["PLAIT_QQQQQQQQ"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PLAIT_LAYOUT", ""),
        ("PLAIT_LAYOUT", "SHARED"),
        ("PLAIT_PREFETCH", "true"),
        ("PLAIT_SCRATCH_TOKENS", "-64"),
        ("PLAIT_SCRATCH_TOKENS", "100"),
        ("PLAIT_SCRATCH_TOKENS", "6.4e1"),
        ("PLAIT_SCRATCH_TOKENS", "²"),
        ("PLAIT_STATE_DIR", "relative/folder"),
        ("PLAIT_PEER_ACCESS", "on"),
        ("PLAIT_PEER_ACCESS", ""),
        ("PLAIT_PEER_TIMEOUT_S", "0"),
        ("PLAIT_GATHER_PATH", "peer_view"),
        ("PLAIT_GATHER_COSTS", "costs.json"),
        ("PLAIT_KERNELS", "triton"),
        ("PLAIT_NARROW_TAIL", "auto"),
        ("PLAIT_STATUS_INTERVAL_S", "0"),
        ("PLAIT_STATUS_INTERVAL_S", "nan"),
        ("PLAIT_TRANSFER_TIMEOUT_S", "inf"),
        ("PLAIT_TRANSFER_TIMEOUT_S", "soon"),
        ("PLAIT_TEST_FAULT", ":2"),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: str) -> None:
    assert set(refused({name: value})) == {name}


def test_token_round_robin_is_refused_with_its_reason() -> None:
    said = refused({"PLAIT_SPLIT": "token-round-robin"})
    assert "part of every page" in said["PLAIT_SPLIT"]
    assert "page-interleave" in said["PLAIT_SPLIT"]


def test_empty_is_none_where_none_is_allowed() -> None:
    settings = Settings.from_env({"PLAIT_STATE_DIR": "", "PLAIT_GATHER_COSTS": "", "PLAIT_TEST_FAULT": ""})
    assert settings.state_dir is None
    assert settings.gather_costs is None
    assert settings.test_fault is None


def test_describe_shows_the_value_in_force() -> None:
    rows = {row.name: row for row in Settings(scratch_tokens=128).describe()}
    assert len(rows) == len(fields(Settings))
    assert (rows["PLAIT_SCRATCH_TOKENS"].value, rows["PLAIT_SCRATCH_TOKENS"].default) == ("128", "0")
    assert all(row.does and row.cost and row.allowed for row in rows.values())


def test_docs_are_the_table() -> None:
    assert DOCS.read_text() == markdown(), "run: python -m plait.contract.settings > docs/settings.md"


def test_contract_is_light() -> None:
    code = (
        "import sys, plait.contract.settings, plait.contract.validate, plait.contract.config\n"
        "heavy = {'torch', 'sglang', 'fastapi', 'numpy', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert time.monotonic() - start < 3, "import plait.contract must stay quick"
