"""The router's ASGI apps: one for clients, one for admin's routes, on two ports or one."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

import plait
from plait.router.board import Board
from plait.router.body import Route as PromptPath
from plait.router.errors import RouterError, bad_request
from plait.router.openapi import describe
from plait.router.routes import admin, figures, health, models
from plait.router.routes.prompts import PromptRoute
from plait.router.state import RouterState

log = logging.getLogger("plait.router")

_SERVED = ", ".join(f"POST {route}" for route in PromptPath) + ", GET /v1/models"


def client_app(state: RouterState, board: Board) -> ASGIApp:
    """Clients' routes and the probes; the figures too, unless they have a port of their own.

    Its OpenAPI names the prompt routes too, which the connection serves before the app (`prompt_routes`).
    """
    rest = [] if state.config.admin_port else [figures.routes(board)]
    app = _app([health.routes(board), models.routes(state), *rest])
    describe(app, prompts=True, keys=state.keys is not None)
    return app


def prompt_routes(state: RouterState) -> dict[bytes, PromptRoute]:
    """By path, those that the connection serves itself."""
    return {route.encode(): PromptRoute(route, state) for route in PromptPath}


def admin_app(board: Board) -> ASGIApp:
    """Figures, probes and the admin API."""
    app = _app([health.routes(board), figures.routes(board), admin.routes(board)])
    describe(app, prompts=False, keys=False)
    return app


def _app(routers: Sequence[APIRouter]) -> FastAPI:
    # No redirects: a POST to /v1/completions/ is an unknown route and is told so.
    app = FastAPI(
        title="Plait router", version=plait.__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RouterError, _on_router_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_fault)
    return app


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _http_error(request, error)


def _http_error(request: Request, error: HTTPException) -> Response:
    method, path = request.method, request.url.path
    headers = dict(error.headers or {})
    if error.status_code == 404:
        message = f"{method} {path}: no such route; this router serves {_SERVED}."
        told = RouterError(404, message, code="unknown_route")
    elif error.status_code == 405:
        told = RouterError(405, f"{method} {path}: wrong method.", code="wrong_method")
        headers = {"allow": ", ".join(_methods(request.app, path))}
    else:
        told = RouterError(error.status_code, str(error.detail))
    return _answer(told, headers=headers)


def _methods(app: FastAPI, path: str) -> list[str]:
    """What `path` may be asked with, by all its routes: Starlette names those of the first one only."""
    return sorted(
        method.upper()
        for template, operations in app.openapi()["paths"].items()
        if re.fullmatch(re.sub(r"{[^}]+}", ".+", template), path)
        for method in operations
    )


async def _on_router_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RouterError)
    return _answer(error)


async def _on_invalid(_: Request, error: Exception) -> Response:
    """A body or a query of the wrong form: all its faults at once."""
    assert isinstance(error, RequestValidationError)
    found = [(".".join(str(part) for part in e["loc"][1:]) or "body", e["msg"]) for e in error.errors()]
    message = "; ".join(f"'{field}': {why}" for field, why in found)
    return _answer(bad_request(f"{message}.", param=found[0][0], code="invalid_request"))


async def _on_fault(request: Request, error: Exception) -> Response:
    log.error("%s %s: the router failed", request.method, request.url.path, exc_info=error)
    return _answer(RouterError(500, "The router failed.", code="router_fault"))


def _answer(error: RouterError, headers: dict[str, str] | None = None) -> Response:
    own = {name.decode("latin-1"): value.decode("latin-1") for name, value in error.head()}
    return Response(error.body(), error.status, headers=own | (headers or {}))
