"""How many samples a request asks for, and the body that asks for one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plait.router.errors import RouterError, bad_request
from plait.router.samples.spans import Edit, Member, edited, elements, members

if TYPE_CHECKING:  # body.py may call this module, so it is not imported here
    from plait.router.body import Route

MAX_SAMPLES = 128

_GENERATE = "/generate"
_COMPLETIONS = "/v1/completions"


def sample_count(
    fields: Mapping[str, Any], route: Route, *, batch: int | None, max_samples: int = MAX_SAMPLES
) -> int:
    """Samples asked for of each prompt: 1 .. `max_samples`. `fields`: the parsed body; `batch`: its prompts.

    Raises RouterError (400, naming the field) for a count that is no whole number in these bounds, for
    counts that differ within one request, and for what cannot be answered right. Numbers in other forms
    ("3", 3.0) are refused although an engine reads some of them: the engine would make samples that the
    router did not count, all in one room.
    """
    if route == _GENERATE:
        return _native_count(fields.get("sampling_params"), batch, max_samples)
    count = _checked(fields.get("n", 1), "n", max_samples, null=True)
    best_of = fields.get("best_of") if route == _COMPLETIONS else None
    if best_of is not None and (best_of != count or isinstance(best_of, bool)):
        raise bad_request(
            f"'best_of' = {best_of!r} asks for the best of several samples, which the engines do not choose: "
            f"leave it out, or set it to n ({count}).",
            param="best_of",
            code="unsupported",
        )
    return count


def single_sample_body(raw: bytes, route: Route) -> bytes:
    """`raw`, a body that `sample_count` counted several samples in, asking for one; all else as it was.

    Every occurrence of the count is set, for parsers differ in which of two equal keys they keep.
    Raises RouterError (400) for JSON nested deeper than the standard library reads.
    """
    text = raw.decode("utf-8")
    try:
        top = members(text)
        if route == _GENERATE:
            holders = [m for m in top if m.key == "sampling_params"]
            counts = [n for holder in holders for n in _native_members(text, holder)]
        else:
            counts = top
        edits = [Edit(m.start, m.end, "1") for m in counts if m.key == "n"]
    except ValueError as error:
        raise bad_request(f"The request body cannot be read: {error}.", code="invalid_json") from error
    return edited(text, edits).encode()


def _native_members(text: str, holder: Member) -> list[Member]:
    starts = [e.start for e in elements(text, holder.start)] if text[holder.start] == "[" else [holder.start]
    return [member for start in starts if text[start] == "{" for member in members(text, start)]


def _native_count(sampling: object, batch: int | None, max_samples: int) -> int:
    name = "sampling_params.n"
    if isinstance(sampling, dict):
        return _checked(sampling.get("n", 1), name, max_samples, null=False)
    if not isinstance(sampling, list):
        return 1  # nothing, or nothing that an engine takes: it says so itself
    if batch is None or len(sampling) != batch:
        held = "a single prompt" if batch is None else f"{batch} prompts"
        raise bad_request(
            f"'sampling_params' lists {len(sampling)} objects for {held}: give one object, or a list of "
            "prompts and one object for each.",
            param="sampling_params",
        )
    counts = [
        _checked(each.get("n", 1), f"sampling_params[{i}].n", max_samples, null=False)
        for i, each in enumerate(sampling)
        if isinstance(each, dict)
    ]
    if len(set(counts)) > 1:
        raise bad_request(
            f"'{name}' must be the same for all prompts of one request, not {min(counts)} and {max(counts)}: "
            "send them as several requests.",
            param=name,
        )
    return counts[0] if counts else 1


def _checked(value: object, name: str, most: int, *, null: bool) -> int:
    # null: the OpenAI routes of an engine refuse it with a clear 400; /generate fails with a 500.
    if value is None and null:
        return 1
    if type(value) is int and 1 <= value <= most:
        return value
    raise _bad_count(value, name, most)


def _bad_count(value: object, name: str, most: int) -> RouterError:
    shown = "null" if value is None else repr(value)[:40]
    return bad_request(
        f"'{name}' = {shown}: the number of samples must be a whole number from 1 to {most}.", param=name
    )
