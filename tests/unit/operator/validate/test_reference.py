from pathlib import Path

from plait_operator.validate.reference import markdown

_PAGE = Path(__file__).parents[4] / "docs" / "admission.md"


def test_the_page_is_that_of_the_tables() -> None:
    command = "run python -m plait_operator.validate.reference > docs/admission.md"
    assert _PAGE.read_text() == markdown(), command
