"""How a worker on another machine reaches its pool: a TCP connection on which both sides prove that they know a secret.

The secret of each worker's life travels with the order to start it, and never over this connection: the pool sends a
random challenge, the worker answers it and sends one of its own. Only then does either side read pickles.
"""

import hashlib
import hmac
import secrets
import socket
import sys
from dataclasses import dataclass, field

from asyncrollout.pool.wire import codec

CONTROL, STEPS = "control", "steps"
"""The two connections of a worker's life: of the actor that watches it, and its own."""

CHALLENGE = 16
"""Bytes; the first that the pool sends."""

PROOF = hashlib.sha256().digest_size
"""Bytes; the next ones."""

MOST_GREETING = 4096
"""Bytes that a stranger may send."""

_LIMIT = 20.0  # seconds to connect, and for each part of the greeting
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}  # seconds, seconds, probes
_UNANSWERED = 30_000  # milliseconds that sent data may go without an acknowledgement


@dataclass(frozen=True)
class NetworkAddress:
    """Where a pool listens, and what a worker's life needs to be let in."""

    host: str
    port: int
    life: bytes
    secret: bytes = field(repr=False)


def prove(secret: bytes, challenge: bytes, role: str) -> bytes:
    return hmac.digest(secret, role.encode() + b"\0" + challenge, "sha256")


def is_proof(secret: bytes, challenge: bytes, role: str, proof: bytes) -> bool:
    return hmac.compare_digest(prove(secret, challenge, role), proof)


def connect(address: NetworkAddress, role: str) -> socket.socket:
    """A connection to the pool in this role, once each side knows the other."""
    connection = socket.create_connection((address.host, address.port), timeout=_LIMIT)
    try:
        notice_silence(connection, gives_up=role == CONTROL)
        challenge = _receive(connection, CHALLENGE)
        own = secrets.token_bytes(CHALLENGE)
        proof = prove(address.secret, challenge, role)
        connection.sendall(codec.frame([address.life, role, proof, own]))
        if not is_proof(address.secret, own, "pool", _receive(connection, PROOF)):
            raise ConnectionRefusedError("what answers there is not the pool")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionRefusedError(
                "the pool closed the connection: it does not know this worker, or not any more"
            )
        data += part
    return data


def notice_silence(connection: socket.socket, *, gives_up: bool = False) -> None:
    """Have the kernel end the connection if the other machine is gone; it does not matter if a process there is frozen.

    With `gives_up`, also while data is under way. A receiver that reads nothing for so long is then given up, too, so
    that only a connection that carries little may have it. Frames leave at once.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if gives_up and sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED)
