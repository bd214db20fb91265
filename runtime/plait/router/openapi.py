"""The OpenAPI of the routes: what FastAPI cannot see (prompts are raw ASGI), and the one form of errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from plait.router.body import Route

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code", "param"],
            "properties": {
                "message": {"type": "string", "description": "What is wrong, and what to do."},
                "type": {"type": "string"},
                "code": {"type": ["string", "integer", "null"]},
                "param": {"type": ["string", "null"], "description": "The field it is about."},
            },
        }
    },
}
_RETRY_AFTER = {
    "Retry-After": {"description": "Seconds to wait before another try.", "schema": {"type": "integer"}}
}
_ERROR_JSON = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}

# What any route may answer, and what prompts may answer beside that.
_EVERYWHERE = {
    "400": "The request cannot be read, or is refused by name of the field.",
    "404": "Nothing of this name.",
    "405": "Another method.",
}
_KEYS = {"401": "No API key, or a wrong one."}
_OF_KEYS = {"429": "The key's rate is used up."}
_ADMIN = {
    "401": "The admin API has a key, and another one was sent.",
    "409": "A worker with this address is listed already, or cannot be changed so.",
}
_PROMPTS = {
    "408": "The request did not arrive in time.",
    "413": "The body is over the router's limit.",
    "415": "The body is encoded, or says it is no JSON.",
    "422": "An engine refused the request.",
    "429": "The waiting line is full, or the key's rate is used up.",
    "431": "Too many headers, or too large.",
    "500": "A bug of the router.",
    "502": "An engine failed before the answer began.",
    "503": "No pair of engines can serve, or the router is ending.",
    "504": "A deadline passed before the answer began.",
}
_BUSY = {"429", "503"}

_TEXT = {"type": "string"}
_TOKENS = {"type": "array", "items": {"type": "integer"}}
_COMMON = {"stream": {"type": "boolean", "default": False}}
_OPENAI = _COMMON | {
    "model": _TEXT,
    "n": {"type": "integer", "minimum": 1, "default": 1, "description": "Samples of each prompt."},
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
}
_BODIES: dict[Route, dict[str, Any]] = {
    Route.CHAT: {
        "required": ["messages"],
        "properties": _OPENAI | {"messages": {"type": "array", "items": {"type": "object"}}},
    },
    Route.COMPLETIONS: {
        "required": ["prompt"],
        "properties": _OPENAI
        | {
            "prompt": {
                "anyOf": [
                    _TEXT,
                    {"type": "array", "items": _TEXT},
                    _TOKENS,
                    {"type": "array", "items": _TOKENS},
                ]
            }
        },
    },
    Route.GENERATE: {
        "properties": _COMMON
        | {
            "text": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
            "input_ids": {"anyOf": [_TOKENS, {"type": "array", "items": _TOKENS}]},
            "sampling_params": {"type": "object"},
        },
    },
}
_SUMMARIES = {
    Route.CHAT: "Chat, as OpenAI's API; all other fields go to the engines as they are.",
    Route.COMPLETIONS: "Completions, as OpenAI's API; all other fields go to the engines as they are.",
    Route.GENERATE: "SGLang's native route; all other fields go to the engines as they are.",
}


def describe(app: FastAPI, *, prompts: bool, keys: bool) -> None:
    """Make `app` serve a whole OpenAPI at /openapi.json.

    `prompts`: the app serves the prompt routes too. `keys`: `/v1` and `/generate` ask for an API key.
    """

    def schema() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _schema(app, prompts=prompts, keys=keys)
        return app.openapi_schema

    app.openapi = schema  # type: ignore[method-assign]


def _schema(app: FastAPI, *, prompts: bool, keys: bool) -> dict[str, Any]:
    found: dict[str, Any] = get_openapi(title=app.title, version=app.version, routes=app.routes)
    paths: dict[str, Any] = found.setdefault("paths", {})
    for methods in paths.values():
        for operation in methods.values():
            # FastAPI's guess: no route here validates in that way.
            operation["responses"].pop("422", None)
    if prompts:
        paths.update({str(route): {"post": _prompt(route)} for route in Route})
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Error"] = _ERROR
    if keys:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, methods in paths.items():
        asks = keys and (path.startswith("/v1/") or path == Route.GENERATE)
        for operation in methods.values():
            told = _EVERYWHERE | (_KEYS | _OF_KEYS if asks else {})
            if path.startswith("/api/v1/workers"):
                told |= _ADMIN
            for status, text in told.items():
                operation["responses"].setdefault(status, _error(status, text))
            if asks:
                operation["security"] = [{"key": []}]
    return found


def _prompt(route: Route) -> dict[str, Any]:
    body = {"type": "object", "additionalProperties": True, **_BODIES[route]}
    answers = {
        "200": {
            "description": "The answer; with `stream` its events, as the decode engine sends them.",
            "headers": {"X-Request-Id": {"schema": _TEXT}},
            "content": {
                "application/json": {"schema": {"type": ["object", "array"]}},
                # OpenAPI 3.1 has no words for one event of a stream.
                "text/event-stream": {},
            },
        }
    }
    return {
        "tags": ["prompts"],
        "summary": _SUMMARIES[route],
        "operationId": route.strip("/").replace("/", "_"),
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": answers | {status: _error(status, text) for status, text in _PROMPTS.items()},
    }


def _error(status: str, text: str) -> dict[str, Any]:
    headers = {"headers": _RETRY_AFTER} if status in _BUSY else {}
    return {"description": text, "content": _ERROR_JSON, **headers}
