"""Against stock CP 1: CP 4, random page owners, and a top-k above every length (no selection)."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import engines
from harness.ask import ask, ask_pair, prompt
from harness.compare import against_stock
from harness.model import make_model

pytestmark = [pytest.mark.stack, pytest.mark.full]

LENGTHS = (1, 5, 63, 64, 65, 127, 128, 300, 301, 1900)


@pytest.mark.parametrize(("cp", "owners", "topk"), [(4, "random", 64), (2, "off", 4096)])
def test_against_stock(
    cp: int, owners: str, topk: int, tmp_path_factory: pytest.TempPathFactory, capsys
) -> None:
    folder: Path = tmp_path_factory.mktemp(f"stock-{cp}-{topk}")
    model = make_model(folder / "tiny", topk=topk)
    shared = engines.prefill(
        "shared",
        model=model,
        folder=folder,
        layout="shared",
        cp=cp,
        chunk=128,
        env={"PLAIT_TEST_OWNERS": owners},
    )
    decode = engines.decode("decode", model=model, folder=folder)
    stock = engines.stock("stock", model=model, folder=folder, chunk=128)
    with engines.running(shared, decode, stock):
        worst, ended = 0.0, 0
        for tokens in LENGTHS:
            ids = prompt(tokens, 1000 + tokens)
            expected = ask(stock, ids)
            found = against_stock(
                expected, ask_pair(shared, decode, [ids])[0].decode, what=f"{tokens} tokens"
            )
            worst, ended = max(worst, found.worst), ended + found.ended
        with capsys.disabled():
            print(f"\n  CP {cp}, owners {owners}, top-k {topk}: worst {worst:.1e}, {ended} ended early")
        assert ended <= len(LENGTHS) / 10
