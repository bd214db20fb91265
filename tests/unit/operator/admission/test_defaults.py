"""What the webhook fills in, and that it follows the field it came from."""

from __future__ import annotations

import jsonpatch
import pytest

from plait_operator.admission.defaults import defaults

GLM, DEEPSEEK = ("zai-org/GLM-5", "glm-5"), ("deepseek-ai/DeepSeek-V3.2", "deepseek-v3.2")


def body(repo: str | None, **model: object) -> dict[str, object]:
    source = {"hub": {"repo": repo}} if repo else {"pvc": {"claimName": "weights"}}
    return {"spec": {"model": {"name": "m", "source": source, **model}}}


def family(new: dict[str, object], old: dict[str, object] | None = None) -> object:
    patched = jsonpatch.apply_patch(new, defaults(new, old=old))
    assert defaults(patched, old=old) == []
    return patched["spec"]["model"].get("family")


@pytest.mark.parametrize(("repo", "name"), [GLM, DEEPSEEK])
def test_a_published_model_is_known_by_its_repository(repo: str, name: str) -> None:
    assert family(body(repo)) == name


@pytest.mark.parametrize(
    "new",
    [
        body("lab/fork"),
        body(GLM[0], revision="abc"),
        body(GLM[0], shape={"hidden_size": 1}),
        body(None),
        {},
        {"spec": None},
        {"spec": {"model": 3}},
    ],
)
def test_of_others_nothing_is_said(new: dict[str, object]) -> None:
    assert defaults(new) == []


def test_what_was_filled_in_follows_the_repository() -> None:
    old = body(GLM[0], family=GLM[1])
    assert family(body(DEEPSEEK[0], family=GLM[1]), old) == DEEPSEEK[1]
    assert family(body("lab/fork", family=GLM[1]), old) is None
    assert family(body(GLM[0], family=GLM[1], revision="abc"), old) is None
    assert family(body(None, family=GLM[1]), old) is None


def test_what_a_user_wrote_stays() -> None:
    fork = body("lab/fork", family=GLM[1])
    assert family(fork) == GLM[1]
    assert family(body("lab/fork-2", family=GLM[1]), fork) == GLM[1]
    assert family(body("lab/fork", family=DEEPSEEK[1]), body(GLM[0], family=GLM[1])) == DEEPSEEK[1]
