"""Deployments and contexts to build children from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plait_operator.api.resource import SharedKVDeployment
from plait_operator.children.context import Context, Release

MODEL: dict[str, Any] = {"name": "GLM-5", "source": {"pvc": {"claimName": "models", "path": "glm-5"}}}


def deployment(*, name: str = "glm", namespace: str = "serving", **spec: Any) -> SharedKVDeployment:
    """One with `spec` over the least there must be."""
    told = {"model": MODEL, "engine": {"image": "sglang:0.5.17"}, **spec}
    return SharedKVDeployment.of(
        {"metadata": {"name": name, "namespace": namespace, "uid": "u-1"}, "spec": told}
    )


def context(
    *, name: str = "glm", apis: Iterable[str] = (), release: Release | None = None, **spec: Any
) -> Context:
    """Its context before the model's shape is known: these children wait for none."""
    return Context(
        deployment=deployment(name=name, **spec), release=release or Release(), apis=frozenset(apis)
    )
