from plait.contract.yaml_lines import YamlLines

TEXT = """\
a:
  b: 1
  c: {d: 2, e: 3}
list: [x, y]
"""


def test_lines_by_path() -> None:
    lines = YamlLines(TEXT)
    assert lines.line(("a",)) == 1
    assert lines.line(("a", "c", "e")) == 3
    assert lines.line(("list",)) == 4
    assert lines.line(("a", "z")) is None
    assert lines.duplicates == []


def test_a_repeated_key_is_told_once_whatever_is_under_it() -> None:
    assert YamlLines(TEXT + "a: {b: 1}\n").duplicates == [("a", 5)]
    assert YamlLines("a: {b: 1, b: 2}\n").duplicates == [("a.b", 1)]


def test_empty_text_has_no_lines() -> None:
    assert YamlLines("").line(("a",)) is None
