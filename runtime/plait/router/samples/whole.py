"""The answers of n single-sample requests, not streamed, as one answer with n samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plait.router.samples.errors import MergeError
from plait.router.samples.spans import Edit, Member, Span, edited, elements, members
from plait.router.samples.usage import merged_usage

if TYPE_CHECKING:
    from plait.router.body import Route

_GENERATE = "/generate"


def merge_whole(route: Route, answers: Sequence[bytes], *, batch: int | None) -> bytes:
    """One answer of the `answers` (bodies of status 200, in the order of the samples) to one request.

    `batch`: number of prompts in a list, None for a single prompt. The first answer gives id, time and all
    else that is there once. Numbers and strings keep the form in which the engines wrote them.
    Raises MergeError, naming the sample, for an answer that is not of the expected shape.
    """
    prompts = 1 if batch is None else batch
    texts = [_text(sample, answer) for sample, answer in enumerate(answers)]
    if route == _GENERATE:
        return _results(texts, prompts, single=batch is None).encode()
    return _openai(texts, prompts).encode()


def _results(texts: Sequence[str], prompts: int, *, single: bool) -> str:
    """A list, prompt by prompt: what an engine answers for n > 1, to a single prompt too."""
    slots = [""] * (prompts * len(texts))
    for sample, text in enumerate(texts):
        if single:
            _members(sample, text)  # raises if it is no object
            slots[sample] = text.strip(" \t\r\n")
            continue
        spans = _elements(sample, text)
        if len(spans) != prompts:
            raise MergeError(sample, f"{len(spans)} results for {prompts} prompts")
        for prompt, span in enumerate(spans):
            slots[prompt * len(texts) + sample] = text[span.start : span.end]
    return f"[{','.join(slots)}]"


def _openai(texts: Sequence[str], prompts: int) -> str:
    tops = [_members(sample, text) for sample, text in enumerate(texts)]
    slots = [""] * (prompts * len(texts))
    for sample, (text, top) in enumerate(zip(texts, tops, strict=True)):
        _place(sample, text, _named(sample, top, "choices"), slots, samples=len(texts))
    first, top = texts[0], tops[0]
    choices = top["choices"]
    edits = [Edit(choices.start, choices.end, f"[{','.join(slots)}]")]
    if "usage" in top and first[top["usage"].start] == "{":
        usages = [
            text[span.start : span.end]
            for sample, text in enumerate(texts)
            for span in [_named(sample, tops[sample], "usage")]
        ]
        edits.append(Edit(top["usage"].start, top["usage"].end, merged_usage(usages)))
    return edited(first, edits)


def _place(sample: int, text: str, choices: Member, slots: list[str], *, samples: int) -> None:
    prompts = len(slots) // samples
    spans = _elements(sample, text, choices.start)
    if len(spans) != prompts:
        raise MergeError(sample, f"{len(spans)} choices for {prompts} prompts")
    for span in spans:
        index = _named(sample, _members(sample, text, span.start), "index")
        number = text[index.start : index.end]
        prompt = int(number) if number.isdecimal() and len(number) < 10 else prompts
        slot = prompt * samples + sample
        if prompt >= prompts or slots[slot]:
            raise MergeError(
                sample, f"a choice of index {number[:20]}, expected 0 .. {prompts - 1}, each once"
            )
        slots[slot] = edited(text, [Edit(index.start, index.end, str(slot))], start=span.start, end=span.end)


def _text(sample: int, answer: bytes) -> str:
    try:
        return answer.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MergeError(sample, f"the answer is not UTF-8: {error}") from error


def _members(sample: int, text: str, start: int | None = None) -> dict[str, Member]:
    try:
        return {member.key: member for member in members(text, start)}
    except ValueError as error:
        raise MergeError(sample, str(error)) from error


def _elements(sample: int, text: str, start: int | None = None) -> list[Span]:
    try:
        return elements(text, start)
    except ValueError as error:
        raise MergeError(sample, str(error)) from error


def _named(sample: int, top: dict[str, Member], name: str) -> Member:
    try:
        return top[name]
    except KeyError:
        raise MergeError(sample, f"there is no '{name}' in the answer") from None
