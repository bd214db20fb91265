"""The event streams of n single-sample requests as one stream with n samples."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from plait.router.samples.errors import MergeError, SampleFailed
from plait.router.samples.spans import Edit, Member, edited, elements, members
from plait.router.samples.usage import merged_usage

if TYPE_CHECKING:
    from plait.router.body import Route

DONE = b"[DONE]"
_GENERATE = "/generate"

# An event with one choice as engines write it (sse_utils.py, serving_completions.py): what has to change
# stands in front, so neither text nor logprobs need be read. Anything else goes the long way.
_STOCK = re.compile(
    rb'\{"id":("[^"\\]*")(,"object":"[^"\\]*","created":)(\d+)'
    rb'(,"model":"[^"\\]*(?:\\.[^"\\]*)*","choices":\[\{"index":)(\d{1,9}),'
)
_SECOND_CHOICE = b',{"index":'
# /generate events of a list of prompts: `index` is set last (tokenizer_manager.py), so it closes the object.
_LAST_INDEX = re.compile(rb',"index":(\d{1,9})\}$')


class StreamMerge:
    """Takes the events of each sample as they come, gives the events to send on.

    Every choice keeps its events in their order and gets its place among all samples as `index` (/generate:
    the event itself does). Final usage is held back until all samples have ended; usage inside events with
    choices (`continuous_usage_stats`) is that choice's own in a stock engine too, and passes. Holds no text:
    memory does not grow with the streams.
    """

    def __init__(
        self, route: Route, samples: int, *, batch: int | None, answer_id: str | None = None
    ) -> None:
        """`batch`: number of prompts in a list, None for a single prompt.

        `answer_id`: the `id` of all events of an OpenAI route; None takes that of the first event.
        """
        self._native = route == _GENERATE
        self._single = batch is None
        self._prompts = 1 if batch is None else batch
        self._samples = samples
        self._open = set(range(samples))
        self._id = b"" if answer_id is None else json.dumps(answer_id).encode()
        self._created = b""
        self._usages: dict[int, str] = {}
        self._extras: dict[int, list[str]] = {}

    @property
    def ended(self) -> bool:
        """Whether every sample has ended."""
        return not self._open

    def feed(self, sample: int, payload: bytes) -> bytes:
        """Events to send for `payload`, the data of one event of `sample`; empty where it is held back.

        Raises SampleFailed for an error event, MergeError for a payload of no known shape: in both cases the
        merged stream cannot be completed.
        """
        if sample not in self._open:
            raise MergeError(sample, "an event after the end of the stream")
        try:
            return self._native_event(sample, payload) if self._native else self._event(sample, payload)
        except (MergeError, SampleFailed):
            raise
        except ValueError as error:
            raise MergeError(sample, str(error)) from error

    def end(self, sample: int) -> bytes:
        """Events to send after the last one of `sample`, whose stream was complete (with its `[DONE]`).

        Empty until the last sample ends; then what was held back, merged, and `[DONE]`. Raises MergeError
        where the samples' usage does not fit together.
        """
        if sample not in self._open:
            raise MergeError(sample, "the stream ended twice")
        self._open.discard(sample)
        if self._open:
            return b""
        held = [*self._extras[min(self._extras)]] if self._extras else []
        if self._usages:
            held.append(self._usage())
        return b"".join(_event(text.encode()) for text in held) + _event(DONE)

    def _event(self, sample: int, payload: bytes) -> bytes:
        match = None if b'"error"' in payload or _SECOND_CHOICE in payload else _STOCK.match(payload)
        if match is None:
            return self._other_event(sample, payload)
        own_id, kind, created, model, index = match.groups()
        self._created = self._created or created
        self._id = self._id or own_id
        place = b"%d" % self._place(sample, int(index))
        rest = payload[match.end() - 1 :]
        return b"".join((b'data: {"id":', self._id, kind, self._created, model, place, rest, b"\n\n"))

    def _other_event(self, sample: int, payload: bytes) -> bytes:
        text = payload.decode("utf-8")
        top = _top(sample, payload, text)
        if "choices" not in top:
            raise MergeError(sample, "an event without 'choices'")
        self._id = self._id or _cut(text, top.get("id"))
        self._created = self._created or _cut(text, top.get("created"))
        choices = elements(text, top["choices"].start)
        if not choices:
            self._hold(sample, text, top)
            return b""
        edits = self._shared(top)
        for choice in choices:
            index = next((m for m in members(text, choice.start) if m.key == "index"), None)
            if index is None:
                raise MergeError(sample, "a choice without 'index'")
            edits.append(self._placed(sample, text, index))
        return _event(edited(text, edits).encode())

    def _hold(self, sample: int, text: str, top: dict[str, Member]) -> None:
        usage = top.get("usage")
        if usage is not None and text[usage.start] == "{":
            self._usages[sample] = text
        else:
            # `sglext`: of the whole answer, and an engine gives that of one sample too. The first's is sent.
            self._extras.setdefault(sample, []).append(edited(text, self._shared(top)))

    def _usage(self) -> str:
        missing = next((s for s in range(self._samples) if s not in self._usages), None)
        if missing is not None:
            raise MergeError(missing, "the stream ended without the usage that others have")
        tops = [(text, _members(text)) for _, text in sorted(self._usages.items())]
        text, top = tops[0]
        total = merged_usage([_cut(text, top["usage"]).decode() for text, top in tops])
        return edited(text, [*self._shared(top), Edit(top["usage"].start, top["usage"].end, total)])

    def _native_event(self, sample: int, payload: bytes) -> bytes:
        if b'"error"' in payload or not (payload.startswith(b'{"') and payload.endswith(b"}")):
            return self._other_native(sample, payload)
        match = _LAST_INDEX.search(payload, max(0, len(payload) - 24))
        if match is not None:
            cut, index = match.start(), int(match[1])
        elif self._single:
            cut, index = len(payload) - 1, 0
        else:
            return self._other_native(sample, payload)
        return b'data: %b,"index":%d}\n\n' % (payload[:cut], self._place(sample, index))

    def _other_native(self, sample: int, payload: bytes) -> bytes:
        text = payload.decode("utf-8")
        top = _top(sample, payload, text)
        if "index" in top:
            return _event(edited(text, [self._placed(sample, text, top["index"])]).encode())
        if not self._single:
            raise MergeError(sample, "a result without 'index'")
        close = text.rindex("}")
        comma = "," if top else ""
        put = f'{comma}"index":{self._place(sample, 0)}'
        return _event(edited(text, [Edit(close, close, put)]).encode())

    def _shared(self, top: dict[str, Member]) -> list[Edit]:
        """`id` and `created` as all events of the merged stream have them."""
        values = {"id": self._id, "created": self._created}
        return [Edit(top[k].start, top[k].end, v.decode()) for k, v in values.items() if k in top and v]

    def _placed(self, sample: int, text: str, index: Member) -> Edit:
        number = text[index.start : index.end]
        if not number.isdecimal() or len(number) > 9:
            raise MergeError(sample, f"'index' is {number[:20]}, no whole number")
        return Edit(index.start, index.end, str(self._place(sample, int(number))))

    def _place(self, sample: int, prompt: int) -> int:
        if prompt >= self._prompts:
            raise MergeError(sample, f"'index' is {prompt}, expected 0 .. {self._prompts - 1}")
        return prompt * self._samples + sample


def _event(payload: bytes) -> bytes:
    return b"data: %b\n\n" % payload


def _members(text: str) -> dict[str, Member]:
    return {member.key: member for member in members(text)}


def _top(sample: int, payload: bytes, text: str) -> dict[str, Member]:
    """The members of an event that is no error."""
    top = _members(text)
    error = top.get("error")
    if error is not None and text[error.start : error.end] != "null":
        raise SampleFailed(sample, payload)
    return top


def _cut(text: str, member: Member | None) -> bytes:
    return b"" if member is None else text[member.start : member.end].encode()
