"""What happens once per process: the model's own class, one group, no hook lost, status."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from tests.unit.engine.conftest import Outcome, Place

from plait.contract.kv import GroupContract, WireContract
from plait.contract.layouts import Layout, Split
from plait.engine import identity, start, state
from plait.engine.install import Applied
from plait.engine.targets import Kind, Target, When

pytestmark = pytest.mark.timeout(600)


class TestModelClass:
    def test_its_own_class_is_served(self, scenarios: dict[str, Outcome]) -> None:
        assert scenarios["own_class"].facts == {"resolved": "GlmMoeDsaForCausalLM"}

    @pytest.mark.parametrize(
        ("name", "instead"),
        [
            ("swallowed_import", "would serve GlmMoeDsaForCausalLM with TransformersForCausalLM"),
            ("swallowed_import_without_substitute", "has no class for GlmMoeDsaForCausalLM"),
        ],
    )
    def test_a_swallowed_import_ends_the_start_with_its_cause(
        self, scenarios: dict[str, Outcome], name: str, instead: str
    ) -> None:
        message = scenarios[name].refusal
        assert instead in message
        assert "sglang.srt.models.glm4_moe: ImportError: libflash_of_a_missing_kernel.so" in message
        assert "Traceback" not in scenarios[name].err

    def test_other_models_are_the_engines_business(self) -> None:
        for asked in ("LlamaForCausalLM", ["LlamaForCausalLM"], []):
            assert start.refuse_substitute(lambda *_: (object, "Anything"), None, asked) == (
                object,
                "Anything",
            )

        def unsupported(*_: object) -> Any:
            raise ValueError("not supported")

        with pytest.raises(ValueError, match="not supported"):
            start.refuse_substitute(unsupported, None, ["LlamaForCausalLM"])

    @pytest.mark.usefixtures("engine")
    def test_a_class_that_no_module_defines_is_said_so(self) -> None:
        assert start.import_error("NoSuchForCausalLM") == "no module of this engine defines it"
        assert "imports now" in start.import_error("GlmMoeDsaForCausalLM")


def test_arguments_are_checked_as_written_and_as_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Arguments:
        model_path: str
        tp_size: int = 1
        made: int = dataclasses.field(default=0, init=False)

    seen: list[Any] = []
    monkeypatch.setattr(start, "refuse_arguments", lambda args: seen.append(("written", args)))
    monkeypatch.setattr(start, "refuse_resolved", lambda args: seen.append(("resolved", args)))

    def resolve(arguments: Arguments) -> None:
        seen.append("engine")
        arguments.tp_size = 8

    start.check_arguments(resolve, Arguments("m"))
    assert seen == [
        ("written", {"model_path": "m", "tp_size": 1}),
        "engine",
        ("resolved", {"model_path": "m", "tp_size": 8}),
    ]


class TestPool:
    SCHEDULER = SimpleNamespace(
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(kv_cache_dtype="fp32"))
    )

    def test_a_pool_of_the_engines_own_class_ends_the_start(
        self, place: Place, capsys: pytest.CaptureFixture[str]
    ) -> None:
        place.settings(layout=Layout.SHARED)
        with pytest.raises(SystemExit):
            start.note_pool(self.SCHEDULER)
        assert "its cache would not be shared" in capsys.readouterr().err

    def test_a_hook_that_was_taken_back_ends_the_start(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        place.settings(layout=Layout.PLAIN)
        lost = Applied(Target("json.dumps", Kind.AROUND, None, When.ALWAYS, "why"), object(), object())
        monkeypatch.setattr(state, "hooks", [lost])
        with pytest.raises(SystemExit):
            start.note_pool(self.SCHEDULER)
        assert "hooks were taken back after they had been applied: json.dumps" in capsys.readouterr().err

    def test_a_sound_engine_notes_its_kv_dtype(self, place: Place) -> None:
        place.at(0, 1)
        place.settings(layout=Layout.PLAIN)
        start.note_pool(self.SCHEDULER)
        assert state.kv_dtype == "fp32"


@pytest.mark.usefixtures("engine")
class TestGroup:
    def contract(self, **other: Any) -> GroupContract:
        wire = WireContract(
            model_digest="d",
            layers=3,
            page_size=64,
            kv_dtype="float32",
            index_dtype="fp8_e4m3",
            mla_row_bytes=2304,
            index_row_bytes=132,
            draft_layers=0,
            transfer_backend="mooncake_tcp",
        )
        fields: dict[str, Any] = {
            "wire": wire,
            "ranks": 2,
            "split": Split.PAGE_INTERLEAVE,
            "layout": Layout.SHARED,
            "engine_version": "0.5.17",
            "plait_version": "0.1.0",
        }
        return GroupContract(**{**fields, **other})

    def meet(self, patch: pytest.MonkeyPatch, other: GroupContract) -> None:
        from sglang.srt import runtime_context

        def all_gather_object(told: list[Any], mine: GroupContract, group: str) -> None:
            assert group == "gloo"
            told[:] = [mine, other]

        parallel = SimpleNamespace(attn_cp_group=SimpleNamespace(cpu_group="gloo"))
        patch.setattr(runtime_context, "get_parallel", lambda: parallel)
        patch.setattr(identity, "group_contract", self.contract)
        patch.setattr(dist, "all_gather_object", all_gather_object)
        start._agree_on_group()

    def test_equal_ranks_agree(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.meet(monkeypatch, self.contract())

    def test_another_rank_is_named_with_what_differs(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            self.meet(monkeypatch, self.contract(split=Split.PAGE_ZIGZAG, plait_version="0.2.0"))
        said = capsys.readouterr().err
        assert "rank 1 of this group has another contract: split (page-interleave here, page-zigzag" in said
        assert "plait_version (0.1.0 here, 0.2.0 there)" in said


@pytest.mark.usefixtures("engine")
class TestStatus:
    def serve(self, patch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
        from plait.engine import status

        seen: list[Any] = []
        patch.setattr(status, "add_routes", lambda app, *, folder, ranks: seen.append((folder, ranks)))
        patch.setenv("PLAIT_STATE_DIR", "before")
        arguments = SimpleNamespace(disaggregation_mode="prefill", port=30000, attn_cp_size=4)
        start.serve_status(arguments)
        return seen

    def test_each_engine_has_a_folder_of_its_own(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        place.settings(layout=Layout.SHARED, state_dir=tmp_path)
        folder = tmp_path / "prefill-30000"
        folder.mkdir()
        (folder / "rank-0.json").write_text("old")
        assert self.serve(monkeypatch, tmp_path) == [(folder, 4)]
        assert os.environ["PLAIT_STATE_DIR"] == str(folder), "spawned ranks must find it"
        assert state.settings.state_dir == folder, "and forked ones"
        assert list(folder.iterdir()) == []

    def test_without_a_setting_it_is_a_temporary_one(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        place.settings(layout=Layout.SHARED)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        [(folder, _)] = self.serve(monkeypatch, tmp_path)
        assert folder.is_relative_to(tmp_path)
        assert folder.is_dir()

    def start(self, patch: pytest.MonkeyPatch, mode: str = "prefill") -> list[Any]:
        from plait.engine import status

        seen: list[Any] = []

        class Writer:
            def __init__(self, scheduler: Any, folder: Path) -> None:
                seen.append((scheduler, folder))

            def start(self) -> None:
                seen.append("started")

        patch.setattr(status, "StatusWriter", Writer)
        scheduler = SimpleNamespace(server_args=SimpleNamespace(disaggregation_mode=mode))
        start.start_status(None, scheduler, "any", argument=1)
        assert seen[0][0] is scheduler
        return [seen[0][1], *seen[1:]]

    @pytest.mark.parametrize(("layout", "accounted"), [(Layout.SHARED, True), (Layout.PLAIN, False)])
    def test_a_rank_writes_and_accounts_for_plaits_pages(
        self,
        place: Place,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        layout: Layout,
        accounted: bool,
    ) -> None:
        place.settings(layout=layout, state_dir=tmp_path)
        assert self.start(monkeypatch) == [tmp_path, "started"]
        assert (state.integrity is not None) is accounted

    @pytest.mark.parametrize("mode", ["null", "decode"])
    def test_only_prefill_has_the_shared_layout(
        self,
        place: Place,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        mode: str,
    ) -> None:
        place.settings(layout=Layout.SHARED, state_dir=tmp_path)
        with pytest.raises(SystemExit):
            self.start(monkeypatch, mode)
        assert "only a prefill engine can have the shared layout" in capsys.readouterr().err

    def test_a_rank_without_a_server_is_refused(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        place.settings(layout=Layout.SHARED)
        with pytest.raises(SystemExit):
            self.start(monkeypatch)
        assert "PLAIT_STATE_DIR is not set in a scheduler process" in capsys.readouterr().err


class TestSessions:
    @pytest.fixture
    def open_session(self) -> Callable[..., Any]:
        async def original(self: object, obj: object, request: object) -> str:
            return f"{self} {obj} {request}"

        async def call() -> Any:
            return await start.refuse_session(original, "manager", "session", "request")

        return call

    @pytest.mark.parametrize("layout", [Layout.SHARED, Layout.REPLICATED])
    async def test_they_are_refused_by_name(
        self, place: Place, open_session: Callable[..., Any], layout: Layout
    ) -> None:
        place.settings(layout=layout)
        with pytest.raises(ValueError, match=r"sessions are refused.*Fix: "):
            await open_session()

    async def test_plain_pages_leave_them_alone(self, place: Place, open_session: Callable[..., Any]) -> None:
        place.settings(layout=Layout.PLAIN)
        assert await open_session() == "manager session request"
