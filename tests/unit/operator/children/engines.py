"""Contexts of deployments whose model is known, and readers of the pods that are made of them."""

from __future__ import annotations

from typing import Any

from tests.unit.operator.children.given import MODEL, deployment

from plait_operator.capacity import context_length_of, contract_of, shape_of
from plait_operator.children.context import Context, Release
from plait_operator.children.revision import template

ROLES = ("prefill", "decode")
GLM = {**MODEL, "family": "glm-5"}


def known(*, name: str = "glm", release: Release | None = None, **spec: Any) -> Context:
    """The context of GLM-5 from a volume, with `spec` over it."""
    made = deployment(name=name, **{"model": GLM, **spec})
    shape = shape_of(made.spec, None)
    assert shape is not None
    return Context(
        deployment=made,
        release=release or Release(),
        shape=shape,
        contract=contract_of(made.spec, shape),
        context_length=context_length_of(made.spec, shape),
    )


def pod(role: str, **spec: Any) -> dict[str, Any]:
    """`spec` of the pods of `role`."""
    told: dict[str, Any] = template(known(**spec), role)["spec"]
    return told


def container(of: dict[str, Any], name: str = "engine") -> dict[str, Any]:
    """The container `name` of a pod's spec."""
    [found] = [c for c in of["initContainers"] + of["containers"] if c["name"] == name]
    return found


def env(of: dict[str, Any]) -> dict[str, Any]:
    """A container's environment; no name stands twice in it."""
    names = [variable["name"] for variable in of["env"]]
    assert len(set(names)) == len(names)
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in of["env"]}


def value(words: list[str], flag: str) -> str:
    """The word after `flag`, which stands once."""
    assert words.count(flag) == 1
    return words[words.index(flag) + 1]
