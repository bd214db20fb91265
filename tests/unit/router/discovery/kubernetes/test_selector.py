"""Selectors of the two sides, and the one that covers both."""

from __future__ import annotations

import pytest

from plait.router.config import ConfigError
from plait.router.discovery.kubernetes.selector import Selector, common


def parse(text: str) -> Selector:
    return Selector.parse("kubernetes prefill", text)


def test_a_pod_needs_all_labels() -> None:
    selector = parse("plait.dev/role=prefill, app=x")
    assert selector.matches({"plait.dev/role": "prefill", "app": "x", "more": "y"})
    assert not selector.matches({"plait.dev/role": "prefill"})
    assert not selector.matches({"plait.dev/role": "prefill", "app": "z"})
    assert str(selector) == "app=x,plait.dev/role=prefill"


@pytest.mark.parametrize(
    "text",
    ["", "a", "a=", "=b", "a=b,", "a==b", "a!=b", "a in (b)", "a/b/c=d", "a=b c", "-a=b", "a=" + "b" * 64],
)
def test_refused_selectors_show_the_form(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert (caught.value.field, caught.value.value) == ("kubernetes prefill", text)
    assert "KEY=VALUE" in caught.value.fix


def test_two_values_of_one_label_select_nothing() -> None:
    with pytest.raises(ConfigError, match="two values of a"):
        parse("a=b,a=c")


@pytest.mark.parametrize(
    ("prefill", "decode", "both"),
    [
        ("role=prefill", "role=decode", "role in (prefill,decode)"),
        ("role=prefill,app=x", "role=decode,app=x", "app=x,role in (prefill,decode)"),
        # What only one side asks for cannot be asked of the server: pods are told apart here.
        ("role=prefill,app=x", "role=decode,tier=y", "role in (prefill,decode)"),
    ],
)
def test_one_selector_covers_both(prefill: str, decode: str, both: str) -> None:
    assert common(parse(prefill), parse(decode)) == both


@pytest.mark.parametrize(("prefill", "decode"), [("a=b", "a=b"), ("a=b", "c=d"), ("a=b", "a=b,c=d")])
def test_sides_that_a_pod_could_share_are_refused(prefill: str, decode: str) -> None:
    with pytest.raises(ConfigError, match="tell the sides apart"):
        common(parse(prefill), parse(decode))
