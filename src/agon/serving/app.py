"""The HTTP application: routes, errors, and the schema that it publishes of itself."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from agon.serving.chat import chat
from agon.serving.completions import complete
from agon.serving.errors import ApiError
from agon.serving.guard import Guard, Limits
from agon.serving.schema import ChatRequest, CompletionRequest, ErrorBody
from agon.serving.service import Service

PAGE = Path(__file__).parent / "page"
PAGE_FILES = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PATHS = frozenset(
    {"/", "/health", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/completions"}
)
METRICS_FORM = "text/plain; version=0.0.4; charset=utf-8"

_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict"})

log = logging.getLogger("agon.serving")

_ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorBody}}
_ANSWER = {
    "description": "The completion; server-sent events where `stream` is true.",
    "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
}


def create_app(service: Service, limits: Limits) -> FastAPI:
    """The application around a service that has not been started.

    Args:
        service: Backend, models and settings.
        limits: Who may ask what.
    """

    @asynccontextmanager
    async def running(_app: FastAPI) -> AsyncGenerator[None]:
        await service.backend.start()
        try:
            yield
        finally:
            await service.backend.close()
            service.close()

    app = FastAPI(
        title="Agon",
        version=_version(),
        lifespan=running,
        docs_url=None,
        redoc_url=None,
        responses=_ERRORS,
    )
    _add_api(app, service)
    _add_page(app)
    _add_errors(app)

    def count(path: str, status: int) -> None:
        # Only paths that exist: others are the clients' to choose, without end.
        name = path if path in PATHS else "other"
        service.metrics.requests.labels(name, str(status)).inc()

    app.add_middleware(Guard, limits=limits, count=count)
    return app


def _add_api(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The models of this server."""
        return {"object": "list", "data": [_model(service, name) for name in service.models]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        """One model."""
        return _model(service, service.model(name).name)

    @app.post("/v1/chat/completions", responses={200: _ANSWER})
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Solve the problem of a chat's last user turn."""
        return await chat(service, body, request)

    @app.post("/v1/completions", responses={200: _ANSWER})
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Let one policy continue texts or token ids."""
        return await complete(service, body, request)

    @app.get("/health")
    async def health() -> Response:
        """Whether requests can be served."""
        if not service.backend.healthy:
            raise ApiError(503, "the engine has stopped: restart the server", code="unhealthy")
        return JSONResponse({"status": "ok", "in_work": service.in_work})

    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={200: {"content": {METRICS_FORM: {}}}},
    )
    async def metrics() -> Response:
        """Figures for Prometheus."""
        text = service.metrics.text(service.backend, service.in_work)
        return Response(text, media_type=METRICS_FORM)


def _model(service: Service, name: str) -> dict[str, Any]:
    served = service.models[name]
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "agon",
        "agon": {"system": served.system, "passes": len(served.stages), "about": served.about},
    }


def _add_page(app: FastAPI) -> None:
    def deliver(name: str) -> FileResponse:
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        return FileResponse(PAGE / name, media_type=PAGE_FILES[name], headers=headers)

    @app.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return deliver("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> FileResponse:
        if name not in PAGE_FILES:
            raise HTTPException(404)
        return deliver(name)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def own(_request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        return _described(error).response()

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        told = {
            404: f"there is nothing at {request.url.path[:200]}",
            405: f"{request.method} is not what {request.url.path[:200]} takes",
        }.get(error.status_code, str(error.detail))
        made = ApiError(error.status_code, told).response()
        made.headers.update(error.headers or {})
        return made

    @app.exception_handler(Exception)
    async def unexpected(_request: Request, error: Exception) -> Response:
        log.error("a request failed", exc_info=error)
        return ApiError(500, "the server failed: its log says why").response()


def _described(error: RequestValidationError) -> ApiError:
    """The first fault, with its place and what was expected."""
    fault = error.errors()[0]
    kind, place = str(fault["type"]), [str(part) for part in fault["loc"][1:]]
    if kind == "json_invalid":
        return ApiError(400, f"the body is not JSON: {fault.get('ctx', {}).get('error', '')}")
    if not place:
        return ApiError(400, "the body is empty or no object: send a JSON object")
    # Names of union branches (`str`, `list[...]`) are no parameters.
    own = [p for p in place if p.isdigit() or (p.isidentifier() and p not in _BRANCHES)]
    name = ".".join(own)[:200] or place[0][:200]
    if kind == "extra_forbidden":
        return ApiError(400, f"{name}: there is no such parameter", name, "unknown_parameter")
    if kind == "missing":
        return ApiError(400, f"{name} is missing", name, "missing_parameter")
    message = str(fault["msg"]).removeprefix("Value error, ")
    code = "unsupported_parameter" if kind == "value_error" else "invalid_value"
    return ApiError(400, f"{name}: {message}", name, code)


def _version() -> str:
    try:
        return version("agon-rl")
    except PackageNotFoundError:
        return "0"
