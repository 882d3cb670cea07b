"""Tokens: who may use a service, and until when."""

import hmac
import ipaddress
import math
import os
import time
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from asyncrollout.errors import UsageError

VARIABLE = "ASYNCROLLOUT_TOKEN"
_SHORTEST = 16


class AccessToken(msgspec.Struct, frozen=True):
    """A secret, and the Unix time at which it expires."""

    secret: bytes
    expires: float = math.inf

    def __repr__(self) -> str:
        return "Token(...)"


def read_token(text: str, *, where: str) -> AccessToken:
    """`secret` or `secret@unix-time`; the error does not show it."""
    secret, at, expires = text.strip().rpartition("@")
    if not at or not expires.isdigit():
        secret, expires = text.strip(), ""
    if len(secret) < _SHORTEST or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise UsageError(f"{where} is not a token: it must have at least {_SHORTEST} ASCII characters, and no spaces")
    return AccessToken(secret.encode(), float(expires) if expires else math.inf)


def gather_tokens(given: str | None, file: str | os.PathLike[str] | None) -> list[AccessToken]:
    """The given token, or that of the environment variable; and all tokens of a file, one per line."""
    tokens = []
    if given is not None:
        tokens.append(read_token(given, where="--token"))
    elif os.environ.get(VARIABLE):
        tokens.append(read_token(os.environ[VARIABLE], where=f"${VARIABLE}"))
    if file is not None:
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise UsageError(f"tokens cannot be read from {str(file)!r}: {error}") from error
        listed = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
        if not listed:  # a file was named, so access is meant to be restricted
            raise UsageError(f"{str(file)!r} contains no token: write one per line")
        tokens += [read_token(line, where=f"{file}, line {number}") for number, line in listed]
    return tokens


def host_of(header: str) -> str:
    """The name or address in a `Host` header, without its port."""
    name = header.strip().lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")


def is_this_machine(host: str) -> bool:
    """Whether it can only mean this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def foreign_host(headers: Iterable[str], allowed: Collection[str]) -> str | None:
    """The `Host` header that is neither for this machine nor allowed; None if there is none."""
    hosts = {header: host_of(header) for header in headers}
    return next((one for one, host in hosts.items() if not is_this_machine(host) and host not in allowed), None)


def why_refused(tokens: Iterable[AccessToken], header: str | None) -> str | None:
    """Why a request with this `Authorization` header is refused; None if it is not."""
    kind, _, given = (header or "").partition(" ")
    if kind.lower() != "bearer" or not given:
        return "a token is required, as a bearer token in the header 'Authorization'"
    secret = given.strip().encode(errors="replace")
    # All of them, so that the time taken reveals nothing.
    found = [token for token in tokens if hmac.compare_digest(token.secret, secret)]
    if not found:
        return "this token is not valid here"
    expires = max(token.expires for token in found)
    if expires <= time.time():
        return f"this token expired at {datetime.fromtimestamp(expires, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return None
