"""Hooks are put on, or the process ends with one message that says which one was not, and why."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.unit.engine.conftest import Outcome

from plait.contract.setting_kinds import Fault
from plait.contract.settings import Settings
from plait.engine import install, state
from plait.engine.install import Applied, current, signature_fault
from plait.engine.targets import Kind, Target, When

pytestmark = pytest.mark.timeout(600)
ADD_ONE = "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req"


def target(path: str, parameters: str | None = None) -> Target:
    names = None if parameters is None else tuple(parameters.split())
    return Target(path, Kind.AROUND, names, When.ALWAYS, "a test")


def test_every_hook_that_is_wanted_is_applied(scenarios: dict[str, Outcome]) -> None:
    found = scenarios["applied"]
    assert found.status == 0, found.err
    assert found.facts["applied"] == found.facts["wanted"]
    assert found.facts["lost"] == []


def test_a_hook_that_was_taken_back_is_named(scenarios: dict[str, Outcome]) -> None:
    assert scenarios["taken_back"].facts == {"lost": [ADD_ONE]}


def test_off_installs_nothing_and_imports_nothing(scenarios: dict[str, Outcome]) -> None:
    assert scenarios["off"].facts == {
        "hooks": 0,
        "patched": 0,
        "backends": True,
        "modules": ["plait.engine", "plait.engine.entry"],
    }


def test_an_unknown_engine_version_is_refused(scenarios: dict[str, Outcome]) -> None:
    message = scenarios["other_version"].refusal
    assert "sglang 0.5.99 is installed" in message
    assert "pip install sglang==0.5.17" in message
    assert "Traceback" not in scenarios["other_version"].err


def test_a_missing_target_and_a_changed_signature_are_told_together(scenarios: dict[str, Outcome]) -> None:
    message = scenarios["other_engine"].refusal
    assert "missing: sglang.srt.layers.cp.base.init_cp_strategy" in message
    assert (
        f"another signature: {ADD_ONE} takes (self, req, has_chunked_req), Plait was written for" in message
    )
    assert "(self, req, has_chunked_req, truncation_align_size)" in message
    assert "Traceback" not in scenarios["other_engine"].err


def test_a_hook_that_the_engine_failed_to_apply_is_named(scenarios: dict[str, Outcome]) -> None:
    message = scenarios["unapplied"].refusal
    assert message.rstrip().endswith(ADD_ONE)
    assert "the engine did not apply these hooks" in message


def test_a_fault_that_no_code_knows_is_refused_with_the_known_ones(scenarios: dict[str, Outcome]) -> None:
    message = scenarios["unknown_fault"].refusal
    assert "'shift-mal'" in message
    for known in ("shift-mla", "shift-index", "swap-owners", "drop-page"):
        assert known in message


@pytest.mark.parametrize("fault", [None, Fault("shift-mla"), Fault("drop-page"), Fault("file", "/tmp/x")])
def test_known_faults_pass(fault: Fault | None) -> None:
    install.check_test_fault(Settings(test_fault=fault))


def test_a_fault_file_is_an_absolute_path(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        install.check_test_fault(Settings(test_fault=Fault("file", "here")))
    assert "file:/absolute/path" in capsys.readouterr().err


class Stock:
    """Stands in for an engine's class."""

    def method(self, a: int, b: int = 0) -> None: ...

    @classmethod
    def of(cls, a: int) -> None: ...

    @staticmethod
    def plain(a: int) -> None: ...


HERE = f"{Stock.__module__}.Stock"


@pytest.mark.parametrize(
    ("path", "parameters"),
    [(f"{HERE}.method", "self a b"), (f"{HERE}.of", "cls a"), (f"{HERE}.plain", "a"), ("json.dumps", None)],
)
def test_a_target_with_the_known_signature_has_no_fault(path: str, parameters: str | None) -> None:
    assert signature_fault(target(path, parameters)) is None


def test_a_class_is_read_by_its_constructor() -> None:
    assert signature_fault(target("json.JSONDecodeError", "self msg doc pos")) is None
    assert "takes (self, msg, doc, pos)" in str(signature_fault(target("json.JSONDecodeError", "self msg")))


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("json.no_such_name", "no_such_name"),
        ("no_such_module.f", "no_such_module"),
        ("json.decoder.BACKSLASH:no-key", "no-key"),
        (f"{HERE}.gone", "gone"),
    ],
)
def test_a_target_that_is_not_there_is_named(path: str, missing: str) -> None:
    fault = signature_fault(target(path, "self"))
    assert fault is not None
    assert fault.startswith("hook target is missing: ")
    assert path in fault
    assert missing in fault


def test_another_signature_names_both() -> None:
    fault = signature_fault(target(f"{HERE}.method", "self a"))
    assert fault is not None
    assert "takes (self, a, b)" in fault
    assert "written for (self, a)" in fault


def test_current_reads_functions_statics_and_dict_entries() -> None:
    assert current(target(f"{HERE}.method")) is Stock.method
    assert isinstance(current(target(f"{HERE}.of")), classmethod)
    assert current(target("json.dumps")) is json.dumps
    assert current(target("json.decoder.BACKSLASH:n")) == "\n"


def test_still_applied_compares_by_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    one = target(f"{HERE}.method")
    monkeypatch.setattr(state, "hooks", [Applied(one, object(), Stock.method)])
    assert install.still_applied() == []
    other: Callable[..., None] = lambda self, a, b=0: None  # noqa: E731
    monkeypatch.setattr(Stock, "method", other)
    assert install.still_applied() == [f"{HERE}.method"]
