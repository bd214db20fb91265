"""The demo's flow: what is asked, what is shown, and how it ends."""

from __future__ import annotations

import contextlib
import io
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plait.model.sample import sample_text
from plait.stack import demo
from plait.stack.chat import ChatError, Piece
from plait.stack.demo import layout_table, printable, run_demo, transfer_table
from plait.stack.figures import Comparison, Layouts, RankTransfer
from plait.stack.supervise import ChildDiedError, StopRequested

COMPARISON = Comparison(
    ranks=2,
    bytes_for_pool=Layouts(1_000_000, 2_000_000),
    tokens=Layouts(16_384, 8_192),
    pages=Layouts(128, 256),
    scratch_bytes=5_000_000,
    used_pages=[29, 28],
    prefetch_hits=34,
    prefetch_late=2,
    prefetch_fallbacks=1,
)
SENT = [RankTransfer(rank=0, pages=30, bytes=7_000_000, seconds=0.5, failures=0)]
ANSWER = [
    Piece("some", 1.5),
    Piece(" text\x1b[31m", 2.0),
    Piece("", 2.1, {"prompt_tokens": 3723, "completion_tokens": 2}),
]


class _Supervisor:
    def check(self) -> None:
        return


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Stands for the running stack; `fails` is raised where `at` says."""
    told: dict[str, Any] = {"pieces": ANSWER, "at": "", "fails": None, "ended": False}
    monkeypatch.chdir(tmp_path)

    @contextlib.contextmanager
    def running(*_: object, **__: object) -> Iterator[_Supervisor]:
        if told["at"] == "start":
            raise told["fails"]
        try:
            yield _Supervisor()
        finally:
            told["ended"] = True

    def stream_chat(_url: str, messages: Sequence[dict[str, str]], **_: object) -> Iterator[Piece]:
        told["messages"] = messages
        if told["at"] == "chat":
            raise told["fails"]
        yield from told["pieces"]

    monkeypatch.setattr(demo, "running", running)
    monkeypatch.setattr(demo, "stream_chat", stream_chat)
    monkeypatch.setattr(demo, "read_figures", lambda _url, layers: (COMPARISON, SENT))
    return told


def test_the_whole_text_is_asked_and_everything_is_shown(
    stack: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(cp=2, decode=1) == 0
    assert stack["messages"] == [{"role": "user", "content": sample_text()}]
    out = capsys.readouterr().out
    assert "some text·[31m" in out  # a model's output must not steer the terminal
    assert "3723 prompt tokens" in out
    assert "first text after 1.5 s" in out
    assert "34 hits, 2 late, 1 fallbacks" in " ".join(out.split())
    assert out.rstrip().endswith("s in all")
    assert stack["ended"]


@pytest.mark.parametrize("at", ["start", "chat"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ChildDiedError("prefill", "prefill ended: [oom]"), 1),
        (ChatError("decode is gone"), 1),
        (StopRequested(signal.SIGINT), 130),
        (StopRequested(signal.SIGTERM), 143),
    ],
)
def test_whatever_goes_wrong_ends_the_demo_with_its_reason(
    stack: dict[str, Any], capsys: pytest.CaptureFixture[str], at: str, error: Exception, status: int
) -> None:
    stack.update(at=at, fails=error)
    assert run_demo(cp=2, decode=1) == status
    out = capsys.readouterr().out
    assert "in all" not in out
    assert (str(error) if status == 1 else f"stopped by {error}") in out


@pytest.mark.parametrize("pieces", [[Piece("text", 1.0)], [ANSWER[-1]], []])
def test_an_answer_without_text_or_usage_is_no_success(stack: dict[str, Any], pieces: list[Piece]) -> None:
    stack["pieces"] = pieces
    assert run_demo(cp=2, decode=1) == 1
    assert stack["ended"]


def test_wrong_options_are_refused_before_a_start(
    stack: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    stack.update(at="start", fails=AssertionError("it must not start"))
    assert run_demo(cp=9, decode=1) == 1
    assert "--cp = 9" in capsys.readouterr().out


def _shown(table: object) -> str:
    console = Console(width=140, file=io.StringIO())
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_tables_hold_the_figures() -> None:
    layouts = _shown(layout_table(COMPARISON))
    for cell in ("1.0 MB", "2.0 MB", "16,384", "8,192", "128", "256", "2.00 x"):
        assert cell in layouts
    transfers = _shown(transfer_table(COMPARISON, SENT))
    for cell in ("30", "29", "7.0 MB", "0.500"):
        assert cell in transfers


def test_printable_keeps_text_and_masks_controls() -> None:
    assert printable("naïve 漢字 \ufffd") == "naïve 漢字 \ufffd"
    assert printable("a\x1b[2J\n") == "a·[2J·"
