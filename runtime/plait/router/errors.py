"""Errors in the form that OpenAI clients read: {"error": {"message", "type", "code", "param"}}."""

from __future__ import annotations

import math
from typing import Any

import orjson

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


class RouterError(Exception):
    """An answer to a client that is not the engines': HTTP status and the four OpenAI fields."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | int | None = None,
        param: str | None = None,
        type: str | None = None,
        retry_after: float | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.type = type or (INVALID_REQUEST if status < 500 else SERVER_ERROR)
        # Seconds; 503 and 429 always tell when to come again.
        self.retry_after = 1.0 if retry_after is None and status in (429, 503) else retry_after
        self.headers = headers
        # The connection is closed behind the answer.
        self.closes = closes

    def head(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer, its length left out."""
        lines = [(b"content-type", b"application/json"), *self.headers]
        if self.retry_after is not None:
            lines.append((b"retry-after", b"%d" % max(1, math.ceil(self.retry_after))))
        return lines

    def payload(self) -> dict[str, Any]:
        """The JSON object."""
        return {"error": {"message": self.message, "type": self.type, "code": self.code, "param": self.param}}

    def body(self) -> bytes:
        """The JSON object, encoded."""
        return orjson.dumps(self.payload())


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> RouterError:
    """A 400 that names the field (`param`) it is about."""
    return RouterError(400, message, param=param, code=code)
