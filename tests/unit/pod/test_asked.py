"""Device and transport, as the engine's own flags tell them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from plait.pod.asked import Asked


@pytest.mark.parametrize(
    ("flags", "env", "cpu", "rdma"),
    [
        ((), {}, False, True),
        (("--device", "cpu"), {}, True, True),
        (("--disaggregation-transfer-backend", "mooncake_tcp"), {}, False, False),
        (("--disaggregation-transfer-backend=mooncake",), {"MC_FORCE_TCP": "1"}, False, False),
        (("--device", "cuda", "--no-such-flag", "1"), {}, False, True),
    ],
)
def test_what_the_flags_say(
    asked: Callable[..., Asked], flags: tuple[str, ...], env: dict[str, str], cpu: bool, rdma: bool
) -> None:
    question = asked()
    question = Asked(contract=question.contract, gpus=0, flags=flags, environ=env, deadline=question.deadline)
    assert (question.cpu, question.rdma) == (cpu, rdma)
