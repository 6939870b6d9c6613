"""Errors in the shape of OpenAI's API."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse


class ApiError(Exception):
    """What a client is told when its request is not served.

    Attributes:
        status: HTTP status.
        message: What was wrong, what was expected, what to do.
        param: The parameter at fault, if it is one.
        code: A short name for programs.
        retry_after: Seconds after which the same request may pass; None where it never will.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.param, self.code, self.retry_after = param, code, retry_after

    def body(self) -> dict[str, Any]:
        """The JSON object."""
        kind = {401: "authentication_error", 429: "rate_limit_error", 504: "timeout_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {
            "error": {
                "message": clean(self.message),
                "type": kind,
                "param": None if self.param is None else clean(self.param),
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The HTTP response."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def clean(text: str) -> str:
    """Text that can be encoded: lone surrogates, which JSON can carry, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
