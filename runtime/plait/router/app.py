"""The router's ASGI apps: one for everything, or clients' and admin's routes on two ports."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route as StarletteRoute

import plait
from plait.router.body import Route
from plait.router.errors import RouterError
from plait.router.routes import figures, health, models
from plait.router.routes.prompts import PromptRoute
from plait.router.state import RouterState

log = logging.getLogger("plait.router")

_SERVED = ", ".join(f"POST {route}" for route in Route) + ", GET /v1/models"


def client_app(state: RouterState) -> FastAPI:
    """Clients' routes and the probes; the figures too, unless they have a port of their own."""
    rest = [] if state.config.admin_port else [figures.routes(state)]
    app = _app([health.routes(state), models.routes(state), *rest])
    for route in Route:
        app.router.routes.append(StarletteRoute(route, endpoint=PromptRoute(route, state), methods=["POST"]))
    return app


def admin_app(state: RouterState) -> FastAPI:
    """Figures and probes."""
    return _app([health.routes(state), figures.routes(state)])


def _app(routers: Sequence[APIRouter]) -> FastAPI:
    # No redirects: a POST to /v1/completions/ is an unknown route and is told so.
    app = FastAPI(
        title="Plait router", version=plait.__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RouterError, _router_error)
    app.add_exception_handler(Exception, _fault)
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        told = RouterError(404, f"{path}: no such route; this router serves {_SERVED}.", code="unknown_route")
    elif error.status_code == 405:
        told = RouterError(405, f"{path}: wrong method.", code="wrong_method")
    else:
        told = RouterError(error.status_code, str(error.detail))
    return _answer(told, headers=dict(error.headers or {}))


async def _router_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RouterError)
    return _answer(error)


async def _fault(request: Request, error: Exception) -> Response:
    log.error("%s %s: the router failed", request.method, request.url.path, exc_info=error)
    return _answer(RouterError(500, "The router failed.", code="router_fault"))


def _answer(error: RouterError, headers: dict[str, str] | None = None) -> Response:
    return Response(error.body(), error.status, headers=headers, media_type="application/json")
