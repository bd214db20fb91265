from plait.contract.layouts import PAGE_SIZE, Layout, Split


def test_names_are_the_settings_values() -> None:
    assert [str(x) for x in Layout] == ["off", "plain", "replicated", "shared"]
    assert [str(x) for x in Split] == ["page-interleave", "page-zigzag"]
    assert PAGE_SIZE == 64


def test_only_the_owned_layouts_split() -> None:
    assert [x.value for x in Layout if x.splits] == ["replicated", "shared"]
