"""Which model: its source, how its shape is known, and whether its length fits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from plait.contract.families import FAMILIES
from plait.contract.shape import ModelShape
from plait.contract.violation import Violation, nearest
from plait_operator.api.spec import HostPathSource, HubSource, Model, PvcSource, SharedKVDeploymentSpec
from plait_operator.validate.environment import is_true
from plait_operator.validate.wording import data_key, object_name

LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
"""Variable by which the engine takes a longer context than the model's own."""

_PUBLISHED = {
    "zai-org/GLM-5": "glm-5",
    "zai-org/GLM-5-FP8": "glm-5-fp8",
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2",
}
"""Repository of a hub -> the family of what is published there."""
_SOURCES = {"pvc": "pvc", "host_path": "hostPath", "hub": "hub"}
_REPO = re.compile(r"[A-Za-z0-9](?:[\w.-]*\w)?/[A-Za-z0-9](?:[\w.-]*\w)?", re.ASCII)
_REVISION = re.compile(r"[\w][\w./-]*", re.ASCII)


def model_violations(spec: SharedKVDeploymentSpec, *, shape: ModelShape | None) -> Iterator[Violation]:
    """Violations of spec.model. `shape` None: it is not known yet, and lengths are checked later."""
    model = spec.model
    if model.name.startswith("-") or model.name != model.name.strip() or not model.name.isprintable():
        reason = "it stands in requests and on a command line: no blank at its ends, no dash first"
        yield Violation("spec.model.name", model.name, reason, "a plain name, for example glm-5")
    yield from _source(model)
    yield from _shape_source(model)
    if shape is not None:
        yield from _length(spec, shape)
    longest, pool = model.context_length, spec.prefill.max_total_tokens
    if longest is not None and pool is not None and longest > pool:
        reason = f"the longest request (spec.model.contextLength = {longest}) does not fit a group's cache"
        fix = f"at least {longest} in whole stripes, or a shorter spec.model.contextLength"
        yield Violation("spec.prefill.maxTotalTokens", pool, reason, fix)


def family_of_repository(repository: object, *, revision: object = None) -> str | None:
    """The family of what a hub's repository holds; None for an unknown one, or at a revision of its own.

    Whoever names a revision may have one in mind whose config.json is another.
    """
    if not isinstance(repository, str) or revision not in (None, "main"):
        return None
    return _PUBLISHED.get(repository)


def _source(model: Model) -> Iterator[Violation]:
    source = model.source
    given = [name for field, name in _SOURCES.items() if getattr(source, field) is not None]
    if len(given) != 1:
        reason = "the weights come from exactly one place"
        if given:
            reason += f", not from {' and '.join(given)}"
        fix = "keep one of them" if given else "write one of pvc, hostPath and hub"
        yield Violation("spec.model.source", given or None, reason, fix)
    if source.pvc is not None:
        yield from _pvc(source.pvc)
    if source.host_path is not None:
        yield from _host_path(source.host_path)
    if source.hub is not None:
        yield from _hub(source.hub)
    if model.revision is not None:
        if source.hub is None:
            reason = "only a hub has revisions"
            yield Violation("spec.model.revision", model.revision, reason, "remove it, or use source.hub")
        elif not _REVISION.fullmatch(model.revision):
            reason = "not the name of a branch, a tag or a commit"
            yield Violation("spec.model.revision", model.revision, reason, "for example main, or a commit")


def _pvc(source: PvcSource) -> Iterator[Violation]:
    path = "spec.model.source.pvc"
    if why := object_name(source.claim_name):
        yield Violation(f"{path}.claimName", source.claim_name, why, "the name of the claim")
    if source.path.startswith("/") or ".." in source.path.split("/"):
        reason = "a folder inside the volume: neither absolute nor with .. in it"
        yield Violation(f"{path}.path", source.path, reason, "for example models/glm-5")


def _host_path(source: HostPathSource) -> Iterator[Violation]:
    parts = source.path.split("/")
    if not source.path.startswith("/") or ".." in parts or not any(parts):
        reason = "must be an absolute path of a folder, without .. in it, and not the root"
        yield Violation("spec.model.source.hostPath.path", source.path, reason, "for example /models/glm-5")


def _hub(source: HubSource) -> Iterator[Violation]:
    path = "spec.model.source.hub"
    if not _REPO.fullmatch(source.repo) or ".." in source.repo or "--" in source.repo:
        reason = "not a repository of a hub, which is OWNER/NAME"
        yield Violation(f"{path}.repo", source.repo, reason, "for example zai-org/GLM-5-FP8")
    if source.secret_ref is not None:
        if why := object_name(source.secret_ref.name):
            yield Violation(f"{path}.secretRef.name", source.secret_ref.name, why, "the name of a Secret")
        if why := data_key(source.secret_ref.key):
            yield Violation(f"{path}.secretRef.key", source.secret_ref.key, why, "a key of the Secret")


def _shape_source(model: Model) -> Iterator[Violation]:
    if model.family is not None and model.family not in FAMILIES:
        close = nearest(model.family, FAMILIES)
        hint = f"did you mean {close}?" if close else f"one of {', '.join(FAMILIES)}."
        fix = f"{hint} Or leave it out: config.json is then read from the source"
        yield Violation("spec.model.family", model.family, "not a model that Plait knows", fix)
    elif model.family is not None and model.source.hub is not None:
        held = family_of_repository(model.source.hub.repo, revision=model.revision)
        if held is not None and held != model.family:
            reason = f"spec.model.source.hub.repo = {model.source.hub.repo} holds {held}"
            yield Violation("spec.model.family", model.family, reason, f"{held}, or null to have it found")
    if model.family is not None and model.shape is not None:
        reason = f"spec.model.family = {model.family!r} tells the shape already"
        yield Violation("spec.model.shape", model.shape, reason, "keep one of the two")


def _length(spec: SharedKVDeploymentSpec, shape: ModelShape) -> Iterator[Violation]:
    length, own = spec.model.context_length, shape.max_position_embeddings
    if length is None and not own:
        reason = "is missing, and the model's shape says no max_position_embeddings"
        yield Violation("spec.model.contextLength", None, reason, "the longest request in tokens")
    if length is not None and 0 < own < length and not allows_longer(spec):
        reason = f"the model was made for {own} tokens"
        fix = f"at most {own}, or {LONGER}=1 in spec.engine.env"
        yield Violation("spec.model.contextLength", length, reason, fix)


def allows_longer(spec: SharedKVDeploymentSpec) -> bool:
    """Whether both roles' engines are told to take a longer context than the model's own."""
    return all(is_true([*spec.engine.env, *role.env], LONGER) for role in (spec.prefill, spec.decode))
