from decimal import Decimal

import pytest

from plait_operator.validate import wording


@pytest.mark.parametrize("name", ["a", "glm-5", "a" * 63, "a0"])
def test_names_of_services(name: str) -> None:
    assert wording.service_name(name) is None


@pytest.mark.parametrize("name", ["", "5glm", "a" * 64, "Glm", "a.b", "a-", "-a", "a_b", "a\n"])
def test_what_is_no_name_of_a_service(name: str) -> None:
    assert wording.service_name(name)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (wording.label, ["0a", "a-b"], ["", "a.b", "A", "a" * 64]),
        (wording.object_name, ["a.b-c.0", "0", "a" * 253], ["", "a..b", ".a", "A", "a" * 254, "a_b"]),
        (wording.data_key, ["tls.crt", "A_b-c", "..a"], ["", ".", "..", "a/b", "a b", "a" * 254]),
        (
            wording.qualified,
            ["rdma/hca", "a", "A_b.c", "x.example/A" + "b" * 62],
            ["", "/a", "a/", "A.b/c", "a/b/c", "x/" + "a" * 64, "-a"],
        ),
        (wording.label_value, ["", "a", "A.b_c-d"], ["a b", "-a", "a" * 64, "é"]),
        (wording.variable, ["A", "_a1", "a.b-c"], ["", "1a", "a b", "a=b"]),
        (
            wording.image,
            [
                "a",
                "a/b:1",
                "lmsysorg/sglang:v0.5.17",
                "h.example:5000/a/b_c--d.e:T_a.g-1",
                "a@sha256:" + "0" * 64,
                "localhost/a:1@sha256:" + "a" * 64,
            ],
            [
                "",
                "a b",
                "a:",
                "a/B",
                "/a",
                "a/",
                "a:b:c",
                "a@sha256:12",
                "a//b",
                "a:" + "b" * 129,
                "https://a/b",
                "SGLang",
                "a/" * 400 + "b",
            ],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_texts(check: object, good: list[str], bad: list[str]) -> None:
    assert callable(check)
    assert [text for text in good if check(text)] == []
    assert [text for text in bad if not check(text)] == []


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("a", "latest"),
        ("h:5000/a", "latest"),
        ("a:latest", "latest"),
        ("a:v1", "v1"),
        ("h:5000/a:v1", "v1"),
        ("a@sha256:" + "0" * 64, None),
        ("no image", None),
    ],
)
def test_the_tag_of_an_image(image: str, tag: str | None) -> None:
    assert wording.image_tag(image) == tag


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        (2, 2),
        (0.5, Decimal("0.5")),
        ("500m", Decimal("0.5")),
        ("1Ki", 1024),
        ("64Gi", 64 * 2**30),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        (".5", Decimal("0.5")),
        ("5.", 5),
        ("2k", 2000),
        ("100n", Decimal("1e-7")),
        ("3e-1", Decimal("0.3")),
        (0, 0),
    ],
)
def test_quantities(text: object, number: Decimal) -> None:
    assert wording.quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "-1", "1 Gi", "1GiB", "Gi", "1K", True, None, [], "0x1", "1e", "nan", -1, "١"]
)
def test_what_is_no_quantity(text: object) -> None:
    assert wording.quantity(text) is None
