"""Bodies of requests and answers, as JSON or msgpack, and the errors of malformed ones."""

from typing import Any, TypeVar

import anyio
import msgspec
from aiohttp import web

T = TypeVar("T")

JSON, MSGPACK = "application/json", "application/msgpack"
_MSGPACKS = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")
_BODY_SECONDS = 60.0


class RefusedError(Exception):
    """A request that is refused with a status and a message."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


async def read_body(request: web.Request, kind: type[T], largest: int) -> T:
    """The body as a `kind`; an error names the place of what is wrong."""
    if request.content_type not in (JSON, *_MSGPACKS):
        raise RefusedError(415, f"a body must be {JSON} or {MSGPACK}, not {request.content_type!r:.100}")
    if (request.content_length or 0) > largest:
        raise _too_large(largest)
    try:
        with anyio.fail_after(_BODY_SECONDS):
            body = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_large(largest) from error
    except TimeoutError as error:
        raise RefusedError(408, f"the body did not arrive within {_BODY_SECONDS:g} s") from error
    decode = msgspec.json.decode if request.content_type == JSON else msgspec.msgpack.decode
    try:
        return decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RefusedError(400, f"the body is not valid: {error}") from error


def _too_large(largest: int) -> RefusedError:
    return RefusedError(
        413, f"the body is larger than the {largest:,} bytes that this server accepts: send less at once"
    )


def answer(request: web.Request, content: dict[str, Any], status: int = 200, headers: Any = None) -> web.Response:
    """A response in the format that `Accept` asks for, or else in that of the request."""
    accepted = request.headers.get("Accept", "*/*")
    if any(kind in accepted for kind in _MSGPACKS) or (request.content_type in _MSGPACKS and JSON not in accepted):
        kind, body = MSGPACK, msgspec.msgpack.encode(content)
    else:
        kind, body = JSON, msgspec.json.encode(content)
    return web.Response(body=body, status=status, content_type=kind, headers=headers)
