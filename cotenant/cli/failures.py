"""From an exception to what a person can use: the thing, the reason, the next command. Never a traceback."""

from __future__ import annotations

import sys

from cotenant.cli.result import Exit, OperationError, OperationResult

__all__ = ["ReviewDeclined", "Unreachable", "as_result"]


class Unreachable(Exception):
    """An agent, server or store that does not answer. ``start`` is the command that starts it."""

    def __init__(self, code: str, what: str, why: str, start: str) -> None:
        super().__init__(f"{what}: {why}")
        self.error = OperationError(code, what, why, start)


class ReviewDeclined(Exception):
    """Nobody agreed to a reviewed change; nothing was started."""

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what}: {why}")
        self.error = OperationError("REVIEW_DECLINED", what, why, remedy)


def _file_remedy(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "name a file that is there"
    return "allow it for this account, or name another" if isinstance(error, PermissionError) else "name another file"


def _away(error: BaseException) -> OperationError | None:
    """A server or store that went away in the middle of the command. Looked for only where its library was in use."""
    httpx, prefect, sqlalchemy = (sys.modules.get(name) for name in ("httpx", "prefect.exceptions", "sqlalchemy.exc"))
    why = None
    if httpx is not None and isinstance(error, httpx.TransportError):
        why = f"it stopped answering: {str(error) or type(error).__name__}"
    elif prefect is not None and isinstance(error, prefect.PrefectHTTPStatusError):
        status = error.response.status_code
        if status == 401:
            return OperationError(
                "FLEET_DENIED",
                "the Prefect server",
                "it did not take the user and password",
                "set COTENANT_PREFECT_AUTH_STRING, or join again with --auth-string",
            )
        if status >= 500:
            why = f"it answers with status {status}: it is starting, or its database is away"
    if why is not None:
        return OperationError("SERVER_UNREACHABLE", "the Prefect server", why, "see cotenant status, then try again")
    if sqlalchemy is not None and isinstance(error, (sqlalchemy.OperationalError, sqlalchemy.InterfaceError)):
        said = str(error.orig or error).splitlines()[0]
        return OperationError("STORE_UNREACHABLE", "the store", said, "start its database, then try again")
    return None


def as_result(error: BaseException) -> OperationResult:
    """The result that stands for this exception."""
    from policies.refusal import Refused

    if isinstance(error, Refused):
        review = error.code.startswith("REVIEW_")
        return OperationResult.failed(
            Exit.REFUSED_BY_REVIEW if review else Exit.REFUSED_INPUT, OperationError.of(error)
        )
    if isinstance(error, ReviewDeclined):
        return OperationResult.failed(Exit.REFUSED_BY_REVIEW, error.error)
    if isinstance(error, Unreachable):
        return OperationResult.failed(Exit.UNREACHABLE, error.error)
    if isinstance(error, KeyboardInterrupt):
        return OperationResult.failed(
            Exit.OTHER_ANSWER, OperationError("INTERRUPTED", "this command", "it was interrupted")
        )
    if (away := _away(error)) is not None:
        return OperationResult.failed(Exit.UNREACHABLE, away)
    if isinstance(error, OSError) and error.filename is not None:
        return OperationResult.failed(
            Exit.REFUSED_INPUT,
            OperationError("FILE", str(error.filename), error.strerror or str(error), _file_remedy(error)),
        )
    return OperationResult.failed(
        Exit.OTHER_ANSWER,
        OperationError(
            "INTERNAL",
            type(error).__name__,
            str(error) or "no more is known",
            "this is a fault of cotenant; run the command again with --debug to see where",
        ),
    )
