"""The samples of one request (n > 1), as they come from their legs, put together for the client."""

from __future__ import annotations

from collections.abc import Sequence

from plait.router.answers import merge_prompt_logprobs
from plait.router.body import Call
from plait.router.leg import Leg
from plait.router.samples.errors import MergeError, SampleFailed
from plait.router.samples.streams import StreamMerge
from plait.router.samples.whole import merge_whole
from plait.router.sse import payloads


class Merging:
    """Of one try. A sample that cannot be merged fails its leg, and so the attempt.

    `failed`: the leg whose stream held an error; `ended`: all streams are complete.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._merge = StreamMerge(call.route, call.samples, batch=call.batch)
        self._complete: set[int] = set()
        self.failed: Leg | None = None

    @property
    def ended(self) -> bool:
        """Whether every stream is complete."""
        return self._merge.ended

    def whole(self, prefills: Sequence[Leg], decodes: Sequence[Leg]) -> bytes | None:
        """The one answer, once all are there."""
        if not all(leg.done for leg in decodes):
            return None
        answers = [leg.answer for leg in decodes]
        if self._call.prompt_logprobs:
            if not all(leg.done for leg in prefills):
                return None
            for sample, (first, last) in enumerate(zip(prefills, decodes, strict=True)):
                try:
                    answers[sample] = merge_prompt_logprobs(first.answer, last.answer)
                except ValueError as error:
                    first.fail_broken(f"The prompt's logprobs cannot be merged: {error}.")
                    return None
        try:
            return merge_whole(self._call.route, answers, batch=self._call.batch)
        except MergeError as error:
            decodes[error.sample].fail_broken(f"The samples cannot be merged: {error}.")
            return None

    def events(self, decodes: Sequence[Leg]) -> bytes:
        """What can be sent on of what came since the last call."""
        found: list[bytes] = []
        for sample, leg in enumerate(decodes):
            if sample in self._complete:
                continue
            data, done, said = leg.take(), leg.done, leg.said
            if done and not leg.streamed:
                leg.fail_broken("A sample was answered whole, and others as streams.")
                break
            try:
                for payload in payloads(data):
                    found.append(self._merge.feed(sample, payload))
                if said is not None:
                    self.failed = leg
                    break
                if done:
                    self._complete.add(sample)
                    found.append(self._merge.end(sample))
            except SampleFailed:
                if said is None:
                    leg.fail_broken("A sample's stream holds an error of an unknown form.")
                self.failed = leg if said is not None else None
                break
            except MergeError as error:
                leg.fail_broken(f"The samples cannot be merged: {error}.")
                break
        return b"".join(found)
