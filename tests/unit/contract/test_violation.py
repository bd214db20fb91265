import pickle

import pytest

from plait.contract.violation import ContractError, Violation, nearest


def test_text_names_field_value_reason_and_fix() -> None:
    text = str(Violation("args.page_size", 1, "pages are 64 tokens", "64"))
    assert text == "args.page_size = 1: pages are 64 tokens. Fix: 64"


def test_error_shows_all_and_survives_pickling() -> None:
    both = [Violation("a", 1, "r", "f"), Violation("b", None, "r", "f")]
    error = ContractError(both)
    assert str(error).count("\n") == 1
    assert pickle.loads(pickle.dumps(error)).violations == tuple(both)


def test_an_error_without_a_violation_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        ContractError([])


def test_nearest() -> None:
    known = ["page_size", "tp_size", "attn_cp_size"]
    assert nearest("pagesize", known) == "page_size"
    assert nearest("PAGE_SIZE", known) == "page_size"
    assert nearest("zzz", known) is None
